# make          the library, the utilities and the benchmark programs, into build/
# make demo     build, then the main job: fi_rma_bw between two processes, as a table; CUDA=1: with
#               memory of a GPU, real or gpu-sim's
# make check    every test
# make install  PREFIX=/usr/local DESTDIR=; library, headers, man pages, utilities
# make install-provider DIR=  provider efa as a file for another libfabric
# make headers  include/rdma/gen/types.h from src/types/
# make bench    speed, as tables; HOSTS=1 between two network namespaces, LOSS=10 with a hundredth of the packets lost

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
CC ?= cc
CFLAGS ?= -O2 -g
BUILD := build
SONAME := libfabric.so.1
REAL := $(SONAME).36.0
LIB := $(BUILD)/lib/$(SONAME)
SOURCES := $(shell find src -name '*.rs') $(shell find cdylib -type f) Cargo.toml
HEADERS := $(shell find include -name '*.h')
TESTS := fi_rma_bw fi_rma_pingpong fi_rdm_bw fi_rdm_tagged_bw fi_rdm_pingpong fi_rdm_tagged_pingpong
UTILS := fi_info fi_pingpong fi_strerror
WARN := -Wall -Wextra -Werror

FUZZ_SECONDS ?= 3600
HOST := $(shell rustc -vV | sed -n 's/host: //p')
.PHONY: all demo sealed fuzz miri miri-check asan tsan compiler-check instructions budgets depth scale check bench install headers headers-check clean
all: $(LIB) $(UTILS:%=$(BUILD)/bin/%) $(TESTS:%=$(BUILD)/bin/%)

PROVIDER := $(BUILD)/provider/libefa-fi.so
CHECKS := imports two_providers layers write_receives tcp_regions provider_file trust intruder shortage kills bad_input old_nodes counters polled_counters operations deferred_work peer_death long_messages many_accesses sleepers connections absent_target last_messages collectives efa_ops dmabuf adapter_faults inject gda forks broken_send announced callers first_contact shared_close restart opsflags incast flooded starved device_memory device_peers other_devices
LAYERS := $(patsubst %,$(BUILD)/layers/lib%-fi.so,ext util hook crash broken)
.PHONY: checks
checks: $(CHECKS:%=$(BUILD)/bin/%) $(PROVIDER) $(BUILD)/bin/asan/bad_input $(BUILD)/bin/asan/peer_death \
	$(BUILD)/bin/asan/operations $(BUILD)/bin/asan/deferred_work $(BUILD)/bin/asan/collectives $(BUILD)/bin/asan/random_calls \
	$(BUILD)/ext/libext-fi.so $(LAYERS) $(BUILD)/bin/hello

$(LIB): $(SOURCES)
	$(CARGO) build --release --quiet -p libfabric
	mkdir -p $(BUILD)/lib
	cp target/release/libfabric.so $@.new
	mv $@.new $@
	ln -sf $(SONAME) $(BUILD)/lib/libfabric.so

# Provider efa as a file of another libfabric (fi_provider(3)).
$(PROVIDER): $(SOURCES) $(shell find provider-file -type f)
	$(CARGO) build --release --quiet -p provider-file
	mkdir -p $(@D)
	cp target/release/libefa_fi.so $@.new
	mv $@.new $@

$(BUILD)/bin/fi_pingpong: src/bin/fi_pingpong.c fabtests-compat/c/bench.c fabtests-compat/c/loops.h \
		fabtests-compat/c/bench.h $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -Ifabtests-compat/c -o $@ $< \
		fabtests-compat/c/bench.c -L$(BUILD)/lib -lfabric -ldl -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/bin/fi_info $(BUILD)/bin/fi_strerror: $(BUILD)/bin/%: src/bin/%.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -o $@ $< \
		-L$(BUILD)/lib -lfabric -Wl,-rpath,'$$ORIGIN/../lib'

$(TESTS:%=$(BUILD)/bin/%): $(BUILD)/bin/%: fabtests-compat/c/%.c fabtests-compat/c/bench.c \
		fabtests-compat/c/bench.h fabtests-compat/c/gpu.h fabtests-compat/c/loops.h $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -o $@ $< fabtests-compat/c/bench.c \
		-L$(BUILD)/lib -lfabric -ldl -Wl,-rpath,'$$ORIGIN/../lib'

vpath %.c abi-tests/c fabtests-compat/c examples benches
$(CHECKS:%=$(BUILD)/bin/%) $(BUILD)/bin/budgets $(BUILD)/bin/scale $(BUILD)/bin/hello: $(BUILD)/bin/%: %.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -o $@ $< \
		-L$(BUILD)/lib -lfabric -ldl -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/ext/libext-fi.so: abi-tests/c/ext_provider.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/ext
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -shared -fPIC -Iinclude -o $@ $< -L$(BUILD)/lib -lfabric

# Provider files for `layers`.
$(BUILD)/layers/libbroken-fi.so: abi-tests/c/ext_provider.c
	mkdir -p $(BUILD)/layers
	cp $< $@
$(BUILD)/layers/libutil-fi.so: CFLAGS += -DUTILITY
$(BUILD)/layers/libhook-fi.so: CFLAGS += -DHOOK
$(BUILD)/layers/libcrash-fi.so: CFLAGS += -DCRASH
$(BUILD)/layers/%-fi.so: abi-tests/c/ext_provider.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/layers
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -shared -fPIC -Iinclude -o $@ $< -L$(BUILD)/lib -lfabric

# The address sanitizer watches the program and every malloc, free and copy of the library.
$(BUILD)/bin/peer_death $(BUILD)/bin/long_messages $(BUILD)/bin/many_accesses $(BUILD)/bin/sleepers $(BUILD)/bin/connections $(BUILD)/bin/absent_target $(BUILD)/bin/last_messages $(BUILD)/bin/trust $(BUILD)/bin/shortage $(BUILD)/bin/kills $(BUILD)/bin/intruder $(BUILD)/bin/broken_send $(BUILD)/bin/announced $(BUILD)/bin/callers $(BUILD)/bin/first_contact $(BUILD)/bin/shared_close $(BUILD)/bin/restart $(BUILD)/bin/incast $(BUILD)/bin/flooded $(BUILD)/bin/starved $(BUILD)/bin/asan/peer_death: fabtests-compat/c/two.h fabtests-compat/c/must.h
$(BUILD)/bin/budgets: fabtests-compat/c/must.h
$(BUILD)/bin/scale: fabtests-compat/c/two.h fabtests-compat/c/must.h
$(BUILD)/bin/scale: CFLAGS += -Ifabtests-compat/c -pthread
$(BUILD)/bin/provider_file: CFLAGS += -rdynamic
$(BUILD)/bin/kills $(BUILD)/bin/intruder $(BUILD)/bin/asan/random_calls: fabtests-compat/c/dice.h
$(patsubst %,$(BUILD)/bin/%,imports two_providers layers write_receives tcp_regions provider_file counters polled_counters operations deferred_work asan/operations asan/deferred_work asan/random_calls efa_ops dmabuf adapter_faults inject gda forks opsflags device_memory device_peers other_devices): abi-tests/c/do.h
$(patsubst %,$(BUILD)/bin/%,imports two_providers write_receives tcp_regions polled_counters provider_file efa_ops dmabuf adapter_faults inject gda forks device_memory device_peers other_devices): abi-tests/c/alone.h
$(patsubst %,$(BUILD)/bin/%,operations deferred_work asan/operations asan/deferred_work): abi-tests/c/pair.h
$(BUILD)/bin/device_memory $(BUILD)/bin/device_peers $(BUILD)/bin/other_devices: abi-tests/c/device.h
$(BUILD)/bin/asan/%: %.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin/asan
	$(CC) -std=c11 -D_GNU_SOURCE -O1 -g -fsanitize=address $(WARN) -Iinclude -o $@ $< \
		-L$(BUILD)/lib -lfabric -ldl -Wl,-rpath,'$$ORIGIN/../../lib'

demo: all
	$(CARGO) build --quiet --release -p gpu-sim
	$(CARGO) run --quiet --release -p fabtests-compat -- demo $(if $(CUDA),--cuda )--lib $(BUILD)/lib --bin $(BUILD)/bin

# Unit, property and simulator tests; the ABI; every benchmark program on every path; faults; bad
# input; the same under the address sanitizer; the library's tests under the address and thread
# sanitizers and Miri; each fuzz target for a minute; real rdma-core on emulated adapters; then
# MPICH and Open MPI from PyPI. What needs no quiet machine (`check-aside`) runs niced beside the
# programs, whose processes mostly wait for each other.
# Nothing is built twice here, so that what cargo writes down for the next time is of no use.
check: export CARGO_INCREMENTAL := 0
check:
	mkdir -p $(BUILD)
	nice -n 19 $(MAKE) check-aside >$(BUILD)/aside.log 2>&1 & aside=$$!; \
	$(MAKE) check-programs; status=$$?; \
	wait $$aside || { tail -n 50 $(BUILD)/aside.log; exit 1; }; \
	grep -H number_of_executed_units fuzz/target/*.log; exit $$status
	$(MAKE) -j2 -Otarget aarch64 asan tsan miri-check

.PHONY: check-programs
check-programs:
	$(MAKE) all checks headers-check
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
	$(CARGO) doc --workspace --no-deps --document-private-items --quiet
	$(CARGO) build --release --quiet -p libfabric 2>&1 | (! grep -A 7 -E '^(warning|error)')
	$(CARGO) test --workspace --quiet
	$(CARGO) build --quiet --release -p efa-sim -p efa-sim-preload -p fabtests-compat -p gpu-sim
	$(CARGO) run --quiet --release -p fabtests-compat -- run --lib $(BUILD)/lib --bin $(BUILD)/bin
	fabtests-compat/hello.sh $(BUILD)/bin/hello
	efa-sim/check.sh $(BUILD)/lib $(BUILD)/bin
	fabtests-compat/mpi.sh $(BUILD)/lib $(BUILD)/mpi

# Fuzz targets, a minute each; the builds of the library's tests under the sanitizers; aarch64.
.PHONY: check-aside
check-aside:
	$(MAKE) fuzz-build
	$(MAKE) -j2 fuzz FUZZ_SECONDS=60
	$(ASAN) --no-run
	$(TSAN) --no-run
	$(MAKE) aarch64-build
	$(MAKE) compiler-check

bench: all
	$(CARGO) run --quiet --release -p fabtests-compat -- bench --pin --lib $(BUILD)/lib \
		--bin $(or $(BIN),$(BUILD)/bin) $(if $(PEER),--peer $(PEER) --peer-provider $(or $(PEER_PROVIDER),shm)) \
		$(if $(HOSTS),--hosts $(or $(MTU),9000) --loss $(or $(LOSS),0)) $(BENCH)

headers:
	cbindgen --quiet --config cbindgen.toml --crate libfabric-rs --output include/rdma/gen/types.h

# Only where cbindgen is installed (cargo install cbindgen); CI installs it.
headers-check:
	@if command -v cbindgen >/dev/null; then \
		cbindgen --quiet --config cbindgen.toml --crate libfabric-rs --output $(BUILD)/types.h && \
		cmp $(BUILD)/types.h include/rdma/gen/types.h; \
	else echo "headers-check: cbindgen is not installed, gen/types.h is compared by layout only"; fi

# DIR: the folder of the other library's provider files, or one for FI_PROVIDER_PATH.
.PHONY: install-provider
install-provider: $(PROVIDER)
	@[ -n "$(DIR)" ] || { echo "install-provider: DIR=, the folder of provider files, is missing"; exit 2; }
	install -D -m 755 $(PROVIDER) $(DESTDIR)$(DIR)/libefa-fi.so

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man7 \
		$(DESTDIR)$(PREFIX)/include/rdma/gen $(DESTDIR)$(PREFIX)/include/rdma/providers
	install -m 755 $(LIB) $(DESTDIR)$(PREFIX)/lib/$(REAL)
	ln -sf $(REAL) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libfabric.so
	install -m 755 $(UTILS:%=$(BUILD)/bin/%) $(DESTDIR)$(PREFIX)/bin
	install -m 644 man/*.7 $(DESTDIR)$(PREFIX)/share/man/man7
	install -m 644 include/rdma/*.h $(DESTDIR)$(PREFIX)/include/rdma
	install -m 644 include/rdma/gen/*.h $(DESTDIR)$(PREFIX)/include/rdma/gen
	install -m 644 include/rdma/providers/*.h $(DESTDIR)$(PREFIX)/include/rdma/providers
	printf 'prefix=%s\nlibdir=$${prefix}/lib\nincludedir=$${prefix}/include\n\nName: libfabric\nDescription: libfabric in Rust\nVersion: 2.7.0\nLibs: -L$${libdir} -lfabric\nCflags: -I$${includedir}\n' \
		'$(PREFIX)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/libfabric.pc

# Fuzz targets, FUZZ_SECONDS each, from the inputs in fuzz/corpus; new ones go to fuzz/target/corpus, a failing one to fuzz/target.
# Coverage wants a nightly compiler; RUSTC_BOOTSTRAP lends the stable one that ability. `make check` runs each for a minute.
FUZZERS := wire soft_packet soft_hostile shm_hostile proto_hostile tcp_hostile
FUZZ_BIN := fuzz/target/$(HOST)/release
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
fuzz: $(FUZZERS:%=fuzz-%)

.PHONY: fuzz-build $(FUZZERS:%=fuzz-%)
fuzz-build:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(COVERAGE)" $(CARGO) build --quiet --release --manifest-path fuzz/Cargo.toml \
		--target $(HOST) --target-dir fuzz/target

$(FUZZERS:%=fuzz-%): fuzz-%: fuzz-build
	mkdir -p fuzz/target/corpus/$*
	$(FUZZ_BIN)/$* -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=fuzz/target/$*- -verbosity=0 -print_final_stats=1 \
		fuzz/target/corpus/$* fuzz/corpus/$* 2>&1 | tee fuzz/target/$*.log | tail -n 8; \
		! grep -q 'SUMMARY: libFuzzer' fuzz/target/$*.log && grep -q 'number_of_executed_units' fuzz/target/$*.log

# Instructions of each call (wants valgrind).
instructions: all
	$(CARGO) run --quiet --release -p fabtests-compat -- instructions --lib $(BUILD)/lib --bin $(BUILD)/bin

# What operations cost in instructions, and starting in time and memory, over the software adapter and an emulated one.
# RDMA= a folder of newer libibverbs and libefa than the system's.
budgets: instructions $(BUILD)/bin/budgets
	$(CARGO) build --quiet --release -p efa-sim -p efa-sim-preload
	benches/budgets.sh $(BUILD)/lib $(BUILD)/bin $(RDMA)

# What encryption of packets between hosts costs (wants a network namespace).
sealed: all
	benches/sealed.sh $(BUILD)/lib $(BUILD)/bin

# Time and memory of many endpoints, addresses, connections and processes; PEER= another library's beside it.
scale: all $(BUILD)/bin/scale
	benches/scale.sh $(BUILD)/bin/scale $(BUILD)/lib $(PEER)

# Cost of matching by depth, in instructions.
depth:
	benches/depth.sh $$($(CARGO) bench --features internals --bench depth --no-run --message-format short 2>&1 | sed -n 's/.*(\(target.*\))/\1/p')

# What makes no system call, under Miri (rustup toolchain install nightly -c miri -c rust-src); few seeds, for it is slow.
# Collectives' schedules are all sizes at once, which is too much for it.
MIRI_SHORT := hmem::owned hmem::plain core::slab core::fifo abi::object abi::info device::soft::packet
MIRI_TESTS ?= $(MIRI_SHORT) hmem::tests wire:: proto::
miri:
	FABRIC_SIM_SEEDS=1 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" $(CARGO) +nightly miri test \
		--target-dir target/miri -p libfabric-rs --lib -- $(MIRI_TESTS) --skip proto::coll

# The quick part, where it is installed; CI installs it.
miri-check:
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then $(MAKE) miri MIRI_TESTS='$(MIRI_SHORT)'; \
	else echo "miri-check: Miri is not installed (rustup toolchain install nightly -c miri -c rust-src)"; fi

# The library's own tests under the address sanitizer.
ASAN := FABRIC_SIM_SEEDS=300 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 $(CARGO) test \
	--quiet -p libfabric-rs --lib --target $(HOST) --target-dir target/asan
asan:
	$(ASAN)

# Threads that do everything at once, under the thread sanitizer.
TSAN := CARGO_PROFILE_DEV_OPT_LEVEL=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
	TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp" $(CARGO) test --quiet -p libfabric-rs --features tsan \
	--target $(HOST) --target-dir target/tsan --test threads
tsan:
	$(TSAN)

# Code that a known defect of the compiler makes wrong.
compiler-check:
	tests/compiler.sh $(BUILD)/compiler

# The library and its tests for aarch64, which qemu carries out. Debian: dpkg --add-architecture
# arm64; packages gcc-aarch64-linux-gnu, qemu-user-static, libc6:arm64, libgcc-s1:arm64; rustup
# target add aarch64-unknown-linux-gnu.
ARM := aarch64-unknown-linux-gnu
ARM_CARGO := FABRIC_SIM_SEEDS=200 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /" $(CARGO)
ARM_INSTALLED := command -v qemu-aarch64-static aarch64-linux-gnu-gcc >/dev/null && \
	[ -e /lib/aarch64-linux-gnu/libc.so.6 ] && rustup target list --installed | grep -q $(ARM)
.PHONY: aarch64 aarch64-build
aarch64-build:
	@if $(ARM_INSTALLED); then CARGO_PROFILE_DEV_OPT_LEVEL=0 $(ARM_CARGO) build --quiet --target $(ARM) -p libfabric && \
		$(ARM_CARGO) test --quiet --target $(ARM) -p libfabric-rs --lib --no-run; fi
aarch64: aarch64-build
	@if $(ARM_INSTALLED); then $(ARM_CARGO) test --quiet --target $(ARM) -p libfabric-rs --lib; \
	else echo "aarch64: compiler, emulator, C library or Rust target are not installed (see the Makefile)"; fi

clean:
	rm -rf $(BUILD)
	$(CARGO) clean
