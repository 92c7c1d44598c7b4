#!/usr/bin/env bash
# Looks in the library for code that rustc 1.95 to 1.97 compile wrongly: a comparison with a constant
# whose result is used, and then decides a branch in the same block (`self.filled &= ready;
# if !ready {...}`). A pass over MIR (SimplifyComparisonIntegral, rust-lang/rust#158206) removes the
# comparison, and the first use reads what was never written. Tests seldom notice.
#
# Usage: compiler.sh FOLDER, for what the compiler writes.
set -euo pipefail
# No dump, no pairs: a pattern that matches nothing would count as one.
shopt -s nullglob
folder=$1
rm -rf "$folder/mir"
mkdir -p "$folder/mir"

# Without machine code: MIR is optimized before. The flags are of the unstable compiler, which
# RUSTC_BOOTSTRAP lends the stable one. A package that is built would not be compiled again.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$folder/target
cargo clean --quiet --release -p libfabric-rs
cargo rustc --quiet --release -p libfabric-rs --lib -- \
	-Zno-codegen --emit=mir -Zdump-mir=SimplifyComparisonIntegral "-Zdump-mir-dir=$folder/mir"

pairs=0
wrong=0
for before in "$folder"/mir/*.before.mir; do
	after=${before%.before.mir}.after.mir
	pairs=$((pairs + 1))
	cmp -s <(tail -n +2 "$before") <(tail -n +2 "$after") && continue
	for v in $(diff "$before" "$after" | sed -n 's/^< *\(_[0-9]*\) = \(Eq\|Ne\)(.*/\1/p' | sort -u); do
		grep -qE "^ *$v = (Eq|Ne)\(" "$after" && continue
		if uses=$(grep -E "\b(copy|move) $v\b|&(mut |raw (const|mut) )?$v\b" "$after"); then
			echo "compiler.sh: ${before##*/}: $v has no value in: $uses" >&2
			wrong=1
		fi
	done
done
[ "$pairs" -gt 0 ] || echo "compiler.sh: this compiler has no pass of that name"
exit $wrong
