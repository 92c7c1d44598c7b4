# make          the library, the utilities and the benchmark programs, into build/
# make demo     build, then the main job: fi_rma_bw between two processes, as a table
# make check    every test
# make install  PREFIX=/usr/local DESTDIR=
# make headers  include/rdma/gen/types.h from src/types/
# make bench    speed, as tables

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
CC ?= cc
CFLAGS ?= -O2 -g
BUILD := build
SONAME := libfabric.so.1
REAL := $(SONAME).36.0
LIB := $(BUILD)/lib/$(SONAME)
SOURCES := $(shell find src -name '*.rs' -o -name '*.c') Cargo.toml build.rs libfabric.map
HEADERS := $(shell find include -name '*.h')
TESTS := fi_rma_bw fi_rma_pingpong fi_rdm_bw fi_rdm_tagged_bw fi_rdm_pingpong fi_rdm_tagged_pingpong
UTILS := fi_info fi_pingpong fi_strerror
WARN := -Wall -Wextra -Werror

.PHONY: all demo check bench install headers headers-check clean
all: $(LIB) $(UTILS:%=$(BUILD)/bin/%) $(TESTS:%=$(BUILD)/bin/%)

# A static library first, then the linker with our version script: GNU ld takes only one, and
# rustc would bring its own.
$(LIB): $(SOURCES)
	$(CARGO) rustc --release --lib --features exports --crate-type staticlib --quiet
	mkdir -p $(BUILD)/lib
	$(CC) -shared -o $@.new -Wl,--whole-archive target/release/libfabric.a -Wl,--no-whole-archive \
		-Wl,-soname,$(SONAME) -Wl,--version-script=libfabric.map -Wl,-z,nodelete -Wl,-z,relro,-z,now \
		-Wl,--gc-sections -Wl,--as-needed -lgcc_s -lpthread -ldl -lm -lc
	mv $@.new $@
	ln -sf $(SONAME) $(BUILD)/lib/libfabric.so

$(UTILS:%=$(BUILD)/bin/%): $(BUILD)/bin/%: src/bin/%.c $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -o $@ $< \
		-L$(BUILD)/lib -lfabric -Wl,-rpath,'$$ORIGIN/../lib'

$(TESTS:%=$(BUILD)/bin/%): $(BUILD)/bin/%: fabtests-compat/c/%.c fabtests-compat/c/bench.c \
		fabtests-compat/c/bench.h fabtests-compat/c/loops.h $(LIB) $(HEADERS)
	mkdir -p $(BUILD)/bin
	$(CC) -std=c11 -D_GNU_SOURCE $(CFLAGS) $(WARN) -Iinclude -o $@ $< fabtests-compat/c/bench.c \
		-L$(BUILD)/lib -lfabric -Wl,-rpath,'$$ORIGIN/../lib'
