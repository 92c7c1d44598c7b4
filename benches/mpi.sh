#!/usr/bin/env bash
# MPI programs over our library and over the C library, in turn; times in microseconds, medians of RUNS (5).
# Usage: benches/mpi.sh MPI LIB PEER: a folder with bin/mpiexec, and the folders of the two libraries.
#
# Where the folder has bin/IMB-MPI1 (Intel MPI: PyPI's impi-rt and impi-devel) its BENCHMARKS run with RANKS=2 ranks,
# one per core; else benches/mpi_loops.c, or with more than two ranks benches/mpi_start.c, compiled by bin/mpicc
# (MPICH, Open MPI). All data goes through libfabric, over ours by efa, over the C library by tcp and, where the MPI
# library can use it, by shm.
set -euo pipefail
mpi=$(realpath "$1") lib=$(realpath "$2") peer=$(realpath "$3")
runs=${RUNS:-5} ranks=${RANKS:-2}
benchmarks=${BENCHMARKS:-PingPong Sendrecv Exchange Allreduce Bcast Alltoall}
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FI_LOG_LEVEL=error FI_EFA_SOFT=on
export I_MPI_FABRICS=ofi I_MPI_OFI_LIBRARY_INTERNAL=0
export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1

program=mpi_loops place="--bind-to core"
[ "$ranks" -le 2 ] || program=mpi_start place=
[ -x "$mpi/bin/IMB-MPI1" ] || "$mpi/bin/mpicc" -O2 -o "$work/loops" "$here/$program.c"

launch() { # provider command...
	local provider=$1
	shift
	if [ -x "$mpi/bin/ompi_info" ]; then
		timeout 300 "$mpi/bin/mpiexec" --allow-run-as-root ${place:---oversubscribe} -n "$ranks" --mca pml cm --mca mtl ofi \
			--mca mtl_ofi_provider_include "$provider" --mca btl ^ofi "$@"
	elif [ -x "$mpi/bin/IMB-MPI1" ]; then
		timeout 300 "$mpi/bin/mpiexec" -n "$ranks" "$@"
	else
		timeout 300 "$mpi/bin/mpiexec" $place -n "$ranks" "$@"
	fi
}

# Lines "benchmark bytes microseconds".
once() { # library provider
	export LD_LIBRARY_PATH=$1:$mpi/lib FI_PROVIDER=$2
	if [ ! -x "$mpi/bin/IMB-MPI1" ]; then
		launch "$2" "$work/loops" 2> "$work/err"
		return
	fi
	launch "$2" "$mpi/bin/IMB-MPI1" -npmin "$ranks" -msglog 3:20 -time 1 $benchmarks 2> "$work/err" |
		awk '/^# Benchmarking/ { name = $3 }
		     /^ *[0-9]+ +[0-9]+ +[0-9.]+/ && ($1 == 8 || $1 == 4096 || $1 == 65536 || $1 == 1048576) {
		         # PingPong prints a time and a rate; the others least, most and average time.
		         print name, $1, name == "PingPong" ? $3 : $5 }'
}

touch "$work/shm"
for _ in $(seq "$runs"); do
	once "$lib" efa >> "$work/ours" || { cat "$work/err" >&2; exit 1; }
	once "$peer" tcp >> "$work/tcp" || { cat "$work/err" >&2; exit 1; }
	once "$peer" shm >> "$work/shm" || true
done
printf '%-12s %9s %10s %10s %10s %8s\n' "$ranks ranks" bytes "ours us" "C tcp us" "C shm us" "to best"
awk '
function median(list, n, i, j, t, a) {
	n = split(list, a, " ")
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
	return n ? a[int((n + 1) / 2)] : ""
}
{
	key = $1 " " $2
	who = FILENAME
	sub(/.*\//, "", who)
	if (who == "ours" && !(key in seen)) { seen[key] = 1; order[++count] = key }
	times[who, key] = times[who, key] " " $3
}
END {
	for (i = 1; i <= count; i++) {
		key = order[i]; split(key, k, " ")
		ours = median(times["ours", key]); tcp = median(times["tcp", key]); shm = median(times["shm", key])
		best = shm != "" && shm + 0 < tcp + 0 ? shm : tcp
		printf "%-12s %9s %10.2f %10.2f %10s %8.2f\n", k[1], k[2], ours, tcp,
			shm == "" ? "-" : sprintf("%.2f", shm), best ? ours / best : 0
	}
}' "$work/ours" "$work/tcp" "$work/shm"
