#!/usr/bin/env bash
# What FI_EFA_SOFT_KEY_FILE costs: programs between two processes over the software adapter off loopback, in clear and
# sealed in turn, medians of RUNS. Usage: benches/sealed.sh LIB BIN (folders). Wants to make a network namespace.
set -euo pipefail
lib=$(realpath "$1") bin=$(realpath "$2")
runs=${RUNS:-5}
if [ -z "${INSIDE:-}" ]; then
	INSIDE=1 exec unshare --map-root-user --net "$0" "$lib" "$bin"
fi
ip link set lo up
ip addr add 10.66.0.1/32 dev lo
work=$(mktemp -d)
server=
trap 'rm -rf "$work"; [ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT
(umask 77 && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' > "$work/keys")
export LD_LIBRARY_PATH=$lib FI_EFA_ENABLE_SHM_TRANSFER=0 FI_EFA_SOFT_IFACE=10.66.0.1

# Microseconds per transfer.
once() {
	local port=$((20000 + RANDOM % 20000))
	"$bin/$1" -p efa -f efa "${@:2}" -E=$port > "$work/server" 2>&1 &
	server=$!
	until ss -ltnH "sport = :$port" | grep -q .; do kill -0 $server; done
	"$bin/$1" -p efa -f efa "${@:2}" -E=$port 127.0.0.1 2> "$work/client" | tail -n 1 | awk '{ print $(NF - 1) }'
	wait $server
	server=
}

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

printf '%-24s %10s %12s %12s %8s\n' program bytes 'clear us' 'sealed us' ratio
while read -r program size more; do
	: > "$work/clear" > "$work/sealed"
	for _ in $(seq "$runs"); do
		once "$program" -S "$size" $more >> "$work/clear"
		FI_EFA_SOFT_KEY_FILE=$work/keys once "$program" -S "$size" $more >> "$work/sealed"
	done
	clear=$(median < "$work/clear") sealed=$(median < "$work/sealed")
	printf '%-24s %10s %12s %12s %8s\n' "$program" "$size" "$clear" "$sealed" \
		"$(awk -v a="$sealed" -v b="$clear" 'BEGIN { printf "%.2f", a / b }')"
done <<'ROWS'
fi_rdm_tagged_pingpong 8 -I 5000
fi_rdm_tagged_pingpong 4096 -I 5000
fi_rdm_tagged_pingpong 65536 -I 1000
fi_rdm_bw 4096 -I 5000
fi_rma_bw 1048576 -o write -I 200
ROWS
