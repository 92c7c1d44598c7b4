#!/usr/bin/env bash
# Instructions per matched message at depth 10 and 10,000: depth.sh PROGRAM (wants valgrind)
set -euo pipefail
program=$1
count() { # depth rounds kind
	valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" "$3" 2>&1 |
		sed -n 's/.*Collected : \([0-9]*\)/\1/p'
}
printf '%-16s %10s %10s %7s\n' matching depth-10 depth-10000 ratio
for kind in posted posted-any unexpected unexpected-any; do
	for depth in 10 10000; do
		few=$(count $depth 1000 $kind)
		many=$(count $depth 11000 $kind)
		eval "at$depth=$(((many - few) / 10000))"
	done
	printf '%-16s %10d %10d %7s\n' $kind "$at10" "$at10000" "$(awk "BEGIN { printf \"%.2f\", $at10000 / $at10 }")"
done
