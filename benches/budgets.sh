#!/usr/bin/env bash
# What operations cost over an emulated EFA adapter, and what starting costs there and over the software adapter.
# budgets.sh LIB BIN [RDMA]: the library's folder, that of the programs, and one of other libibverbs and libefa.
set -euo pipefail
lib=$1 bin=$2 rdma=${3:-} target=${CARGO_TARGET_DIR:-target}/release
[ -z "$rdma" ] || export LD_LIBRARY_PATH=$rdma
"$target/efa-sim" run -- "$target/fabtests-compat" instructions --far --lib "$lib" --bin "$bin"
for fabric in efa efa-direct; do
	echo "starting, software adapter, $fabric"
	"$bin/budgets" $fabric
	echo "starting, emulated EFA adapter, $fabric"
	FI_EFA_ENABLE_SHM_TRANSFER=0 "$target/efa-sim" run -- "$bin/budgets" $fabric
done
