#!/usr/bin/env bash
# Time and memory per endpoint, address, connection and pair of processes, providers efa and tcp; beside it PEER's tcp and shm.
# Usage: benches/scale.sh PROGRAM LIB [PEER] (a folder, and a library or a folder). PROCESSES=64 and ITEMS=1000 change the numbers.
set -euo pipefail
program=$(realpath "$1") lib=$(realpath "$2") peer=${3:-}
processes=${PROCESSES:-64} items=${ITEMS:-1000}
[ -z "$peer" ] || peer=$(realpath "$peer")
[ ! -f "$peer" ] || peer=$(dirname "$peer")
export FI_EFA_SOFT=on FI_LOG_LEVEL=none

rows() { # name lib provider
	local what
	for what in "endpoints $items" "turns 10000" "addresses 100000" "connections $items" "known 4096" \
		"all $processes"; do
		# The C library's shm takes 256 addresses.
		case "$3 $what" in shm*addresses*|shm*connections*|shm*known*) continue ;; esac
		LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 300 "$program" "$3" $what |
			sed "s|^|$1 $3: |" || echo "$1 $3: $what failed"
	done
}

rows ours "$lib" efa
rows ours "$lib" tcp
if [ -n "$peer" ]; then
	rows peer "$peer" shm
	rows peer "$peer" tcp
fi
