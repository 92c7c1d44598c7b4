#!/usr/bin/env bash
# MPI programs over our library and over the C library, in turn; times in microseconds, medians of RUNS (5).
# Usage: benches/mpi.sh MPI LIB PEER: a folder with bin/mpiexec, and the folders of the two libraries.
#
# Where the folder has bin/IMB-MPI1 (Intel MPI: PyPI's impi-rt and impi-devel) its BENCHMARKS run with RANKS=2 ranks,
# one per core; else benches/mpi_loops.c, or with more than two ranks benches/mpi_start.c, compiled by bin/mpicc
# (MPICH, Open MPI). All data goes through libfabric, over ours by efa, over the C library by tcp and, where the MPI
# library can use it, by shm.
#
# HOSTS=1 (root, MPICH) puts the second half of RANKS into a network namespace of its own, joined to that of the first
# by a veth pair of MTU=9000, and runs benches/mpi_flows.c, with our tcp in the place of the C library's shm.
# PROGRAM names another program of benches.
set -euo pipefail
mpi=$(realpath "$1") lib=$(realpath "$2") peer=$(realpath "$3")
runs=${RUNS:-5} ranks=${RANKS:-2}
benchmarks=${BENCHMARKS:-PingPong Sendrecv Exchange Allreduce Bcast Alltoall}
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=mpi_loops place="--bind-to core"
[ "$ranks" -le 2 ] || program=mpi_start place=
# What is measured beside ours and the C library's tcp.
third=("$peer" shm) title="C shm us"
if [ -n "${HOSTS:-}" ]; then
	program=mpi_flows place= third=("$lib" tcp) title="our tcp us"
	host=mpi$$-
	trap 'ip netns del ${host}1 2>/dev/null || true; ip netns del ${host}2 2>/dev/null || true; rm -rf "$work"' EXIT
	for h in 1 2; do ip netns add $host$h; done
	ip link add veth netns ${host}1 type veth peer name veth netns ${host}2
	for h in 1 2; do
		ip -n $host$h link set lo up
		ip -n $host$h link set veth mtu "${MTU:-9000}" up
		ip -n $host$h addr add 10.78.0.$h/24 dev veth
	done
	cat > "$work/on-host" <<-END
		#!/bin/sh
		exec ip netns exec $host\$((PMI_RANK * 2 / PMI_SIZE + 1)) env FI_EFA_SOFT_IFACE=veth FI_TCP_IFACE=veth "\$@"
	END
	chmod +x "$work/on-host"
fi
program=${PROGRAM:-$program}
export FI_LOG_LEVEL=warn FI_EFA_SOFT=on
export I_MPI_FABRICS=ofi I_MPI_OFI_LIBRARY_INTERNAL=0
export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1

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
		timeout 300 "$mpi/bin/mpiexec" $place -n "$ranks" ${HOSTS:+"$work/on-host"} "$@"
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

failed() { cat "$work/err" >&2; exit 1; }

touch "$work/third"
for _ in $(seq "$runs"); do
	once "$lib" efa >> "$work/ours" || failed
	once "$peer" tcp >> "$work/tcp" || failed
	once "${third[@]}" >> "$work/third" || [ "${third[1]}" = shm ] || failed
done
printf '%-12s %9s %10s %10s %10s %8s\n' "$ranks ranks" bytes "ours us" "C tcp us" "$title" "to best"
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
		ours = median(times["ours", key]); tcp = median(times["tcp", key]); third = median(times["third", key])
		best = third != "" && third + 0 < tcp + 0 ? third : tcp
		printf "%-12s %9s %10.2f %10.2f %10s %8.2f\n", k[1], k[2], ours, tcp,
			third == "" ? "-" : sprintf("%.2f", third), best ? ours / best : 0
	}
}' "$work/ours" "$work/tcp" "$work/third"
