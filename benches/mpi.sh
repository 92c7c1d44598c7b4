#!/usr/bin/env bash
# MPI programs over our library and over the C library, in turn: time of each IMB-MPI1 benchmark, medians of RUNS (5).
# Usage: benches/mpi.sh MPI LIB PEER: a folder with bin/mpiexec and bin/IMB-MPI1 (of Intel MPI: PyPI's impi-rt and
# impi-devel), and the folders of the two libraries. One process per core for 2 ranks; with RANKS=4 they share two.
# All data goes through libfabric (I_MPI_FABRICS=ofi), ours by efa, the C library's by tcp and by shm.
set -euo pipefail
mpi=$(realpath "$1") lib=$(realpath "$2") peer=$(realpath "$3")
runs=${RUNS:-5} ranks=${RANKS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FI_LOG_LEVEL=error FI_EFA_SOFT=on I_MPI_FABRICS=ofi I_MPI_OFI_LIBRARY_INTERNAL=0 I_MPI_HYDRA_TOPOLIB=hwloc
benchmarks=${BENCHMARKS:-PingPong Sendrecv Exchange Allreduce Bcast Alltoall}

# Lines "benchmark bytes microseconds".
once() { # library provider
	LD_LIBRARY_PATH=$1:$mpi/lib FI_PROVIDER=$2 timeout 120 "$mpi/bin/mpiexec" -n "$ranks" "$mpi/bin/IMB-MPI1" \
		-npmin "$ranks" -msglog 3:20 -time 1 $benchmarks 2> "$work/err" |
		awk '/^# Benchmarking/ { name = $3 }
		     /^ *[0-9]+ +[0-9]+ +[0-9.]+/ && ($1 == 8 || $1 == 4096 || $1 == 65536 || $1 == 1048576) {
		         # PingPong prints a time and a rate; the others least, most and average time.
		         print name, $1, name == "PingPong" ? $3 : $5 }'
}

for _ in $(seq "$runs"); do
	once "$lib" efa >> "$work/ours" || { cat "$work/err" >&2; exit 1; }
	once "$peer" tcp >> "$work/tcp" || { cat "$work/err" >&2; exit 1; }
	once "$peer" shm >> "$work/shm" || true
done
printf '%-12s %9s %10s %10s %10s %8s\n' "$ranks ranks" bytes "ours us" "C tcp us" "C shm us" "to best"
awk -v work="$work" '
function median(list, n, i, j, t, a) {
	n = split(list, a, " ")
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
	return n ? a[int((n + 1) / 2)] : ""
}
{
	key = $1 " " $2
	if (FILENAME ~ /ours$/ && !(key in seen)) { seen[key] = 1; order[++count] = key }
	who = FILENAME; sub(/.*\//, "", who)
	times[who, key] = times[who, key] " " $3
}
END {
	for (i = 1; i <= count; i++) {
		key = order[i]; split(key, k, " ")
		ours = median(times["ours", key]); tcp = median(times["tcp", key]); shm = median(times["shm", key])
		best = shm != "" && shm + 0 < tcp + 0 ? shm : tcp
		printf "%-12s %9s %10s %10s %10s %8.2f\n", k[1], k[2], ours, tcp, shm == "" ? "-" : shm, best ? ours / best : 0
	}
}' "$work/ours" "$work/tcp" "$work/shm"
