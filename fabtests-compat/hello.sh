#!/bin/sh
# The example program as server and client: hello.sh PROGRAM. Fails unless the message arrives.
set -eu
lines=$(mktemp -u)
mkfifo "$lines"
trap 'rm -f "$lines"' EXIT
"$1" >"$lines" &
server=$!
exec 3<"$lines"
read -r program address <&3
"$program" "$address" || { kill "$server"; exit 1; }
read -r got <&3
wait "$server"
[ "$got" = 'got "hello"' ]
