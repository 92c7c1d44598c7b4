#!/usr/bin/env bash
# What device memory costs on a real GPU, as tables: benches/gpu.sh, after `make all`. What cannot be run here is named.
# benches/gpu.sh --sim runs it on gpu-sim, which shows that the script works and nothing about speed.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/bin lib=build/lib under=()
export LD_LIBRARY_PATH=$PWD/$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ "${1:-}" = --sim ]; then
	under=(target/release/gpu-sim run --)
elif [ ! -e /dev/nvidiactl ]; then
	echo "no GPU here (/dev/nvidiactl): not run: CUDA's own copies, context after fi_getinfo, dma-buf exports,"
	echo "a kernel that waits for a message, device-to-device and host-to-device messages and RMA on one host"
	exit 0
fi
mkdir -p $bin
cc -std=c11 -D_GNU_SOURCE -O2 -Wall -Iinclude -Iabi-tests/c -o $bin/gpu_checks benches/gpu_checks.c -L$lib -lfabric -ldl
for check in floors context dmabuf kernel; do
	echo "== $check"
	"${under[@]}" $bin/gpu_checks $check
done
# Runs both ends of a program on this host; the first two arguments choose the memory of the server
# and of the client.
pair() {
	local server=$1 client=$2 out port
	shift 2
	out=$(mktemp)
	# shellcheck disable=SC2086
	"${under[@]}" "$bin/$1" "${@:2}" $server -E=0 >"$out" 2>&1 &
	local pid=$!
	until port=$(sed -n 's/^port //p' "$out") && [ -n "$port" ]; do
		kill -0 $pid || { cat "$out"; return 1; }
		read -rt 0.01 <> <(:) || :
	done
	# shellcheck disable=SC2086
	"${under[@]}" "$bin/$1" "${@:2}" $client -E="$port" 127.0.0.1
	wait $pid
	rm -f "$out"
}
for ends in "cuda cuda" "host cuda" "cuda host"; do
	read -r from to <<<"$ends"
	for program in fi_rdm_tagged_bw "fi_rma_bw -o write" "fi_rma_bw -o read"; do
		echo "== $program, client $from, server $to"
		# shellcheck disable=SC2086
		pair "$([ "$to" = cuda ] && echo -D cuda)" "$([ "$from" = cuda ] && echo -D cuda)" \
			$program -S 4096,65536,1048576,8388608 -I 50 -w 5
	done
done
if ls /dev/infiniband/uverbs* >/dev/null 2>&1; then
	echo "an EFA is here: the tables above went over it where shared memory did not carry them"
else
	echo "no EFA here: not run: peer-to-peer between adapter and GPU"
fi
