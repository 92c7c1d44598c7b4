#!/usr/bin/env bash
# The library over emulated adapters with each set of capabilities, and Debian's tools on them.
# check.sh LIB BIN: the library's folder and that of the benchmark programs.
set -euo pipefail
lib=$1 bin=$2 target=${CARGO_TARGET_DIR:-target}/release
sim() {
	"$target/efa-sim" run "$@"
}
# The emulation needs process_vm_readv(2) on its programs, which some containers forbid.
"$target/efa-sim" probe || exit 0
if ! command -v ibv_devinfo >/dev/null; then
	echo "efa-sim: no ibv_devinfo (packages ibverbs-utils, ibverbs-providers; .ci/run installs them): left out" >&2
	exit 0
fi
sim --adapters 2 -- ibv_devinfo | grep -c 'state:.*PORT_ACTIVE' | grep -qx 2
LD_LIBRARY_PATH=$lib sim -- "$bin/fi_info" -p efa | grep -q 'domain: rdmap0s6-rdm'
run() {
	echo "efa-sim $*"
	sim "$@" -- "$target/fabtests-compat" adapter --lib "$lib" --bin "$bin" --limit 60
}
run
run --no-rdma-write --no-unsolicited
run --no-rdma-read --no-rdma-write --no-rnr-retry --device-id efa0
run --reorder 40 --seed 7
run --rnr 10 --no-notify --no-sgid
run --old-kernel --send-queue 256 --recv-queue 512
export FI_EFA_ENABLE_SHM_TRANSFER=0
sim -- "$bin/dmabuf" efa
sim --no-rdma-read --no-rdma-write -- "$bin/dmabuf" efa
sim --old-kernel -- "$bin/dmabuf" efa refused
# Device memory: accessed by the adapter, copied, or refused.
device() {
	echo "device memory: efa-sim $1, gpu-sim $2, ${*:3}"
	# shellcheck disable=SC2086
	LD_LIBRARY_PATH=$lib sim $1 -- "$target/gpu-sim" run $2 -- "$bin/device_memory" "${@:3}" 2>/dev/null
}
device "" "" efa uncopied
device "--no-rdma-write" "" efa uncopied
device "--no-rdma-read --no-rdma-write" "--delay-us 100" efa uncopied
device "" "" efa disabled
device "" "--no-dmabuf" efa
device "" "--no-dmabuf" efa-direct refused
device "" "--fail cuMemGetHandleForAddressRange=1" efa p2p
device "" "--no-dmabuf --fail cuMemcpyAsync=700,gdr_open" efa broken
device "" "--no-dmabuf" efa mapped
device "" "" efa mapped p2p
device "" "--no-gdrcopy" efa unmapped p2p
FI_HMEM_DISABLE_P2P=1 device "" "" efa
FI_HMEM_DISABLE_P2P=1 device "" "" efa-direct refused
FI_EFA_ENABLE_SHM_TRANSFER=1 device "" "" efa p2p
# Devices other than NVIDIA's. Debian's libefa has no RDMA write, and efa-direct no FI_RMA without.
other() {
	echo "efa-sim, $*"
	LD_LIBRARY_PATH=$lib sim -- "$target/gpu-sim" run --device "$1" -- "$bin/other_devices" "$@" 2>/dev/null
}
other rocr efa moved
other neuron efa moved
other synapse efa refused
# Debian's libefa has neither external queues nor service levels, nor does it report the order of
# bytes: run `gda` and `adapter_faults low` (with `--service-levels 8`) and `adapter_faults order`
# (with `--in-order`) by hand with a newer libefa.
sim -- "$bin/gda" refused
sim --bad-keys 20 -- "$bin/adapter_faults" keys
sim --link-down-after 100 -- "$bin/adapter_faults" link
sim -- "$bin/forks" efa
sim -- "$bin/forks" efa-direct
sim -- "$bin/adapter_faults" receiver
sim -- "$bin/adapter_faults" managed
sim --rdma-size 4096 -- "$bin/adapter_faults" parts
sim -- "$bin/adapter_faults" more
sim --rdma-size 65536 -- "$bin/adapter_faults" long
sim --dead-after 100 -- "$bin/adapter_faults" lost
sim --max-mr 64 -- "$bin/adapter_faults" cached
sim --service-levels 0 -- "$bin/adapter_faults" levels
sim -- "$bin/adapter_faults" disorder
sim -- "$bin/adapter_faults" crowded
sim --no-rnr-retry -- "$bin/adapter_faults" receiver
sim -- "$bin/inject" 32
sim -- "$bin/write_receives" hardware
sim --inline 80 -- "$bin/inject" 80
