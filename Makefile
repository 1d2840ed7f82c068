# PipeDevice: build, demonstrate, test, install. `make` alone prints what there is.

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc)
FILE ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
BENCH_DIR ?= bench-report
RESULTS ?= docs/results
RTL_DIR ?= rtl-report
BASE ?=
FUZZ_SECONDS ?= 30
SEED ?=
MINUTES ?= 1
TEST_ARGS ?=
TEST_SECONDS ?=
CARGO ?= cargo
INSTALL ?= install

TARGET := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
RUST_MIN := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
# The sonames say which versions of the C ABI are compatible: see crates/capi/build.rs.
SONAME := libpd.so.0
SHLIB := $(TARGET)/release/libpd.so.$(VERSION)
STLIB := $(TARGET)/release/libpd.a
MAP := crates/capi/libpd.map
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
MAN1 := $(wildcard docs/man/*.1)
MAN3 := $(wildcard docs/man/*.3)
MAN5 := $(wildcard docs/man/*.5)
MAN7 := $(wildcard docs/man/*.7)

bindir := $(DESTDIR)$(PREFIX)/bin
libdir := $(DESTDIR)$(PREFIX)/lib
includedir := $(DESTDIR)$(PREFIX)/include
mandir := $(DESTDIR)$(PREFIX)/share/man

.PHONY: help deps packages rust build demo peers bench figures bench-ab need-root test test-docs test-loom test-short test-long suites test-engines test-programs simulate lint docs fuzz fuzz-short install uninstall clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  FILE='A B'      files to stream in the demo       DEMO_ARGS='--rounds 3'  see: pd demo --help"
	@echo "  BENCH_ARGS=--quick  see: pd bench --help       BENCH_DIR=$(BENCH_DIR)  where the report goes"
	@echo "  RESULTS=$(RESULTS)  where a quiet machine's figures go"
	@echo "  BASE=REV        for bench-ab: revision to compare with    RTL_DIR=$(RTL_DIR)  where rtl-perf and rtl-synth report"
	@echo "  JOBS=$(JOBS)          compilers at a time               FUZZ_SECONDS=$(FUZZ_SECONDS)         for each fuzz target"
	@echo "  SEED=           for simulate: one run again           MINUTES=$(MINUTES)               of runs with other seeds"
	@echo "  PREFIX=$(PREFIX)  DESTDIR=  where to install"

deps: packages rust ## install what is missing (Debian, as root), or say what it is

# What programs are run with and compiled by, to see that they run on the fabric, and Debian's packages of it.
TOOLS := valgrind:valgrind gdb:gdb strace:strace clang:clang musl-gcc:musl-tools qemu-x86_64:qemu-user

packages:
	@missing=; \
	command -v ip >/dev/null || [ -x /usr/sbin/ip ] || missing="$$missing iproute2"; \
	command -v gcc >/dev/null || missing="$$missing gcc"; \
	[ -e /usr/include/stdio.h ] || missing="$$missing libc6-dev"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	command -v make >/dev/null || missing="$$missing make"; \
	$(if $(BENCHING),$(foreach package,$(PEER_PACKAGES) $(MEASURED_PACKAGES),dpkg -s $(package) >/dev/null 2>&1 || missing="$$missing $(package)";)) \
	$(if $(TESTING),python3 -c "import json" 2>/dev/null || missing="$$missing python3";) \
	$(if $(TESTING),$(foreach pair,$(TOOLS),command -v $(word 1,$(subst :, ,$(pair))) >/dev/null || missing="$$missing $(word 2,$(subst :, ,$(pair)))";)) \
	$(if $(TESTING),[ -e "$$(clang -print-file-name=libclang_rt.asan-x86_64.so 2>/dev/null)" ] || missing="$$missing libclang-rt-dev";) \
	$(if $(SIMULATING)$(TESTING),command -v verilator >/dev/null || missing="$$missing verilator";) \
	$(if $(SIMULATING)$(TESTING),command -v g++ >/dev/null || missing="$$missing g++";) \
	$(if $(SIMULATING)$(TESTING),[ -e /usr/include/zlib.h ] || missing="$$missing zlib1g-dev";) \
	$(if $(DOCUMENTING),command -v mandoc >/dev/null || missing="$$missing mandoc";) \
	$(if $(DOCUMENTING),command -v python3 >/dev/null || missing="$$missing python3-minimal";) \
	$(if $(SYNTHESISING),command -v yosys >/dev/null || missing="$$missing yosys";) \
	$(if $(SYNTHESISING),command -v python3 >/dev/null || missing="$$missing python3-minimal";) \
	[ -n "$$missing" ] || exit 0; \
	if ! command -v apt-get >/dev/null; then \
	    echo "missing:$$missing (Debian's names); install them with this system's package manager" >&2; exit 1; \
	elif [ "$$(id -u)" != 0 ]; then \
	    echo "missing:$$missing; run: sudo apt-get install --no-install-recommends$$missing" >&2; exit 1; \
	fi; \
	echo "installing:$$missing"; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing

rust:
	@command -v $(CARGO) >/dev/null || { \
	    echo "missing: Rust $(RUST_MIN) or later; see https://rustup.rs, then open a new shell" >&2; exit 1; }
	@have=$$(rustc --version | cut -d ' ' -f 2); \
	printf '%s\n%s\n' "$(RUST_MIN)" "$$have" | sort -CV || { \
	    echo "Rust $$have is too old: $(RUST_MIN) or later is needed; run: rustup update stable" >&2; exit 1; }

# Packages that are installed. Each program is optimised as a whole, so that those of tests and applications would take as long again.
INSTALLED := --package pd --package pd-capi --package pd-preload

# rustc exports the C symbols without versions, so the shared library is linked from the static one.
build: rust ## build pd, libpd.a, libpd.so and libpd_preload.so, for x86-64-v2 (release)
	$(CARGO) build --release $(INSTALLED) --jobs $(JOBS)
	$(CC) -shared -o $(SHLIB) -Wl,-soname,$(SONAME) -Wl,--version-script=$(MAP) \
	    $$(sed -n 's/^ *\(pd_[a-z0-9_]*\);/-Wl,-u,\1/p' $(MAP)) \
	    $(STLIB) -Wl,--gc-sections -lgcc_s -lpthread -ldl -lm

demo: deps build ## stream real files between two containers, over TCP and PipeDevice (root)
	$(SUDO) $(TARGET)/release/pd demo $(foreach file,$(FILE),--file '$(file)') $(DEMO_ARGS)

# Each peer of a C library is one shared object beside pd; one whose library is missing is reported by pd bench.
PEER_PACKAGES := libucx-dev libfabric-dev libclang-dev linux-perf
# Unmodified programs that are measured. One that is missing is reported by pd bench.
MEASURED_PACKAGES := iperf3 redis-server redis-tools nginx-light wrk haproxy postgresql mariadb-server sysbench python3-uvloop python3-grpcio python3-torch
PEER_DIR := $(TARGET)/release/peers
PEER_LIBS_ucx := -lucp -lucs
PEER_LIBS_libfabric := -lfabric

peers:
	@mkdir -p $(PEER_DIR)
	@$(foreach peer,ucx libfabric,$(CC) -O2 -Wall -Wextra -shared -fPIC -o $(PEER_DIR)/$(peer).so \
	    crates/bench/peers/$(peer).c $(PEER_LIBS_$(peer)) || \
	    { rm -f $(PEER_DIR)/$(peer).so; echo "peer $(peer) is left out" >&2; };)

bench: BENCHING := yes
bench: deps peers ## install peers and programs, run every benchmark and the demo, and write RESULTS/MACHINE/results.json (root)
	$(CARGO) build --release --package pd --package pd-preload --features pd/peers --jobs $(JOBS)
	$(CARGO) build --release --package pd-tests --features programs --example tokio_web --jobs $(JOBS)
	$(SUDO) $(TARGET)/release/pd demo --results $(RESULTS) --out $(BENCH_DIR)-demo.json --plot $(BENCH_DIR)-demo.svg $(DEMO_ARGS)
	$(SUDO) $(TARGET)/release/pd bench all --results $(RESULTS) --report $(BENCH_DIR) $(BENCH_ARGS)

figures: ## write the figures of the documents from what `make bench` has recorded and from constants, and the manual pages made from guides
	@docs/figures.py write
	@docs/manuals.py write

bench-ab: deps build ## compare this tree with the revision BASE, interleaved; fails on a significant loss (root)
	@[ -n "$(BASE)" ] || { echo "which revision? make bench-ab BASE=<rev>" >&2; exit 1; }
	@rm -rf $(TARGET)/bench-base/tree && mkdir -p $(TARGET)/bench-base/tree
	git archive $(BASE) | tar -x -C $(TARGET)/bench-base/tree
	$(CARGO) build --release --package pd --jobs $(JOBS) \
	    --manifest-path $(TARGET)/bench-base/tree/Cargo.toml --target-dir $(abspath $(TARGET))/bench-base/target
	$(SUDO) $(TARGET)/release/pd bench ab --base $(TARGET)/bench-base/target/release/pd $(BENCH_ARGS)

include rtl/rtl.mk

need-root:
	@[ "$$(id -u)" = 0 ] || { \
	    echo "the tests make network namespaces and need root; run:" >&2; \
	    echo "  sudo env PATH=\"\$$PATH\" HOME=\"\$$HOME\" make test" >&2; exit 1; }

# Tests run unoptimised but for what the dev profile says: assertions on, and built in a few minutes. Libraries and
# programs are built with the tests: alone, dependencies would have fewer features and be built twice.
BOUNDED := --config 'target."cfg(unix)".runner="$(CURDIR)/tests/bounded"'
ALL_TARGETS := --lib --bins --examples --tests
test: TESTING := yes
test: need-root deps rtl-packages ## run every test: unit, property, loom, C programs, hardware, real namespaces (root)
	PD_RTL_REQUIRED=1 PD_LIBRARIES_BUILT=1 tests/lanes $(TEST_SECONDS:%=--seconds %) --first '$(MAKE) rtl-model' \
	    --aside 'tests/unchanged $(TARGET)/passed/rtl Makefile rtl -- $(MAKE) rtl-test' \
	    --aside 'tests/unchanged $(TARGET)/passed/docs Makefile Cargo.lock crates apps tests -- $(MAKE) test-docs' \
	    -- $(CARGO) build --workspace $(ALL_TARGETS) --jobs $(JOBS) -- $(TEST_ARGS)

test-docs: rust
	$(CARGO) test --workspace --doc --jobs $(JOBS)

test-loom: rust ## run the model checker on rings and waits
	$(CARGO) test $(BOUNDED) --workspace --test loom --jobs $(JOBS) -- $(TEST_ARGS)

# The whole driver in one thread, under a clock, a kernel and clients that are made up. A seed that fails is printed.
simulate: rust ## run the simulated driver with seeds of MINUTES, or with one SEED again
	SEED=$(SEED) MINUTES=$(MINUTES) $(CARGO) test --package pd-driver --lib --jobs $(JOBS) -- \
	    simulation::tests::long --exact --ignored --nocapture

# Containers of real engines: their packages are large, so this is not part of `make test`.
test-engines: need-root deps ## give containers of podman and docker the fabric (installs both; root)
	@command -v podman >/dev/null && command -v dockerd >/dev/null && command -v iptables >/dev/null || \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
	    podman runc containernetworking-plugins docker.io iptables
	$(CARGO) build --workspace --jobs $(JOBS)
	$(CARGO) test --package pd-tests --test container_engines --jobs $(JOBS) -- --ignored

# Programs that the library has to serve, and Debian's packages of them.
PROGRAMS := iperf3:iperf3 redis-server:redis-server redis-benchmark:redis-tools memcached:memcached \
    nginx:nginx-light wrk:wrk haproxy:haproxy node:nodejs javac:default-jdk-headless escript:erlang-base \
    python3.11:python3.11

# Test suites of others. Cargo brings their sources.
SUITES := $(abspath $(TARGET))/suites
TOKIO_TESTS := io_async_fd net_panic net_unix_pipe process_smoke rt_threaded tcp_accept tcp_accept_ready tcp_connect tcp_echo \
    tcp_into_split tcp_into_std tcp_peek tcp_shutdown tcp_socket tcp_split tcp_stream uds_cred uds_datagram uds_socket uds_split \
    uds_stream unix_shutdown

suites: rust
	@command -v cmake >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends cmake
	$(CARGO) vendor --quiet --manifest-path tests/suites/Cargo.toml $(SUITES)/vendor >/dev/null
	cmake -S $(SUITES)/vendor/libuv-sys2/libuv -B $(SUITES)/libuv -DLIBUV_BUILD_BENCH=OFF >/dev/null
	cmake --build $(SUITES)/libuv --target uv_run_tests --parallel $(JOBS)
	rm -rf $(SUITES)/tokio/src && mkdir -p $(SUITES)/tokio && cp -r $(SUITES)/vendor/tokio/. $(SUITES)/tokio
	printf '\n[workspace]\n' >>$(SUITES)/tokio/Cargo.toml
	CARGO_TARGET_DIR=$(SUITES)/tokio/target $(CARGO) test --manifest-path $(SUITES)/tokio/Cargo.toml --features full --no-run \
	    --jobs $(JOBS) $(addprefix --test ,$(TOKIO_TESTS))

test-programs: TESTING := yes
test-programs: need-root deps suites ## run whole programs with and without the preload library (installs them; root)
	@missing=; PATH="$$PATH:/usr/sbin"; \
	for pair in $(PROGRAMS); do command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	[ -d /usr/lib/postgresql ] || missing="$$missing postgresql"; \
	[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing="$$missing libnginx-mod-stream"; \
	[ -e /usr/share/java/netty-transport.jar ] || missing="$$missing libnetty-java"; \
	[ -e /usr/lib/python3/dist-packages/grpc ] || missing="$$missing python3-grpcio"; \
	[ -e /usr/lib/python3/dist-packages/uvloop ] || missing="$$missing python3-uvloop"; \
	[ -e /usr/lib/python3.11/test/test_socket.py ] || missing="$$missing libpython3.11-testsuite"; \
	[ -z "$$missing" ] || DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing
	$(CARGO) build --workspace --jobs $(JOBS)
	$(CARGO) build --package pd-tests --features programs --examples --jobs $(JOBS)
	for path in offloaded direct; do \
	    PD_TEST_PATH=$$path $(CARGO) test --package pd-tests --features programs --test programs --jobs $(JOBS) -- --ignored --test-threads 1 || exit; \
	done

# The first test of a suite for each program that is there. SHORT pairs programs with tests.
SHORT := redis-server:redis_answers_right nginx:nginx_serves_right_files iperf3:iperf3_moves haproxy:haproxy_stands \
    memcached:memcached_answers python3:processes_of_pythons_multiprocessing_share
test-short: need-root rust ## the short form of test-programs and test-engines, with what is installed (root)
	$(CARGO) build --workspace --jobs $(JOBS)
	@PATH="$$PATH:/usr/sbin"; tests=; for pair in $(SHORT); do \
	    if command -v $${pair%%:*} >/dev/null; then tests="$$tests $${pair##*:}"; \
	    else echo "SKIPPED: $${pair##*:}: $${pair%%:*} is not installed; make test-programs installs it"; fi; \
	done; \
	[ -z "$$tests" ] || $(CARGO) test $(BOUNDED) --workspace --features pd-tests/programs --test programs --jobs $(JOBS) -- \
	    --ignored --test-threads 1 $(TEST_ARGS) $$tests
	@if command -v podman >/dev/null || command -v dockerd >/dev/null; then \
	    $(CARGO) test $(BOUNDED) --workspace --test container_engines --jobs $(JOBS) -- --ignored $(TEST_ARGS); \
	else echo "SKIPPED: container engines: neither podman nor docker is installed; make test-engines installs both"; fi

test-long: test fuzz-short test-engines test-programs rtl-regress ## everything: test, all suites, long simulations (hours; root)
	PD_KILLS=10000 PD_TEST_SECONDS=3600 $(CARGO) test $(BOUNDED) -p pd-tests --test hostile --jobs $(JOBS) -- hoards kills
	PD_CONNECTIONS=1000 PD_TAKE_OVERS=200 PD_TEST_SECONDS=3600 $(CARGO) test $(BOUNDED) -p pd-tests --test crowds --jobs $(JOBS) -- --nocapture
	PD_LOOM_DEEP=1 $(MAKE) test-loom
	$(MAKE) simulate SEED= MINUTES=30

lint: rust rtl-lint ## check format, clippy (warnings are errors), links of the documents, labels of orderings, floors, openings of comments, figures, and that tests named in docs/ exist
	@$(CARGO) fmt --version >/dev/null 2>&1 && $(CARGO) clippy --version >/dev/null 2>&1 || { \
	    echo "missing: rustfmt or clippy; run: rustup component add rustfmt clippy" >&2; exit 1; }
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace $(ALL_TARGETS) --jobs $(JOBS) -- -D warnings
	@for test in $$(grep -ohE '[a-z0-9_/-]+\.rs::[a-z0-9_]+' docs/*.md docs/*/*.md | sort -u); do \
	    grep -qwF "$${test##*::}" "$${test%%::*}" || { echo "docs/ name a test that does not exist: $$test" >&2; exit 1; }; \
	done
	@docs/site.py check
	@docs/figures.py check
	@docs/manuals.py check
	@tests/sync-points
	@tests/floors
	@tests/comments

# The site is made by mdBook, which cargo builds once, into target/.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(TARGET)/tools/bin/mdbook

$(MDBOOK):
	$(CARGO) install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search \
	    --root $(TARGET)/tools --target-dir $(TARGET)/tools/build --jobs $(JOBS)
	@rm -rf $(TARGET)/tools/build

docs: DOCUMENTING := yes
docs: packages rust $(MDBOOK) ## make a site of all documents and man pages in target/docs, and check its links
	@docs/site.py build $(MDBOOK) $(TARGET)/docs
	@echo "open $(TARGET)/docs/index.html"

fuzz-short: rust ## run the kept programs of each fuzz target and mutations of them for FUZZ_SECONDS, on a stable compiler
	PD_FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --workspace --features pd-driver/testing --test corpus --jobs $(JOBS) -- --nocapture

fuzz: rust ## run each fuzz target for FUZZ_SECONDS (needs nightly Rust and cargo-fuzz)
	@[ -e fuzz/Cargo.toml ] || { echo "missing: fuzz/Cargo.toml; there are no fuzz targets here" >&2; exit 1; }
	@$(CARGO) fuzz --version >/dev/null 2>&1 || { \
	    echo "missing: cargo-fuzz; run: cargo install cargo-fuzz" >&2; exit 1; }
	@$(CARGO) +nightly --version >/dev/null 2>&1 || { \
	    echo "missing: nightly Rust; run: rustup toolchain install nightly --profile minimal" >&2; exit 1; }
	@set -e; for target in $$($(CARGO) +nightly fuzz list); do \
	    mkdir -p fuzz/corpus/$$target; n=0; while read -r line; do n=$$((n + 1)); \
	        python3 -c "import sys; sys.stdout.buffer.write(bytes.fromhex('$$line'))" >fuzz/corpus/$$target/seed-$$n; done <fuzz/seeds/$$target; \
	    echo "== $$target, $(FUZZ_SECONDS) s"; \
	    $(CARGO) +nightly fuzz run --jobs 1 $$target -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; \
	done

install: ## install what `make build` made under DESTDIR and PREFIX
	@[ -e $(TARGET)/release/pd ] && [ -e $(SHLIB) ] || { echo "nothing is built; run: make build" >&2; exit 1; }
	$(INSTALL) -d $(bindir) $(libdir)/pkgconfig $(includedir) $(mandir)/man1 $(mandir)/man3 $(mandir)/man5 $(mandir)/man7
	$(INSTALL) -m 755 $(TARGET)/release/pd $(bindir)/pd
	$(INSTALL) -m 755 $(SHLIB) $(libdir)/libpd.so.$(VERSION)
	ln -sf libpd.so.$(VERSION) $(libdir)/$(SONAME)
	ln -sf $(SONAME) $(libdir)/libpd.so
	$(INSTALL) -m 644 $(STLIB) $(libdir)/libpd.a
	$(INSTALL) -m 755 $(TARGET)/release/libpd_preload_core.so $(libdir)/libpd_preload_core.so
	$(INSTALL) -m 755 $(TARGET)/release/libpd_preload.so $(libdir)/libpd_preload.so
	$(INSTALL) -m 644 crates/capi/include/pd.h $(includedir)/pd.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/capi/pd.pc.in >$(libdir)/pkgconfig/pd.pc
	chmod 644 $(libdir)/pkgconfig/pd.pc
	$(INSTALL) -m 644 $(MAN1) $(mandir)/man1
	$(INSTALL) -m 644 $(MAN3) $(mandir)/man3
	$(INSTALL) -m 644 $(MAN5) $(mandir)/man5
	$(INSTALL) -m 644 $(MAN7) $(mandir)/man7
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

uninstall: ## remove what `make install` installed
	rm -f $(bindir)/pd $(includedir)/pd.h $(libdir)/pkgconfig/pd.pc
	rm -f $(addprefix $(libdir)/,libpd.a libpd_preload.so libpd_preload_core.so libpd.so $(SONAME) libpd.so.$(VERSION))
	rm -f $(addprefix $(mandir)/man1/,$(notdir $(MAN1)))
	rm -f $(addprefix $(mandir)/man3/,$(notdir $(MAN3))) $(addprefix $(mandir)/man5/,$(notdir $(MAN5))) $(addprefix $(mandir)/man7/,$(notdir $(MAN7)))

clean: ## remove everything built, and the demo's and the benchmarks' results
	$(CARGO) clean
	rm -rf fuzz/target
	rm -f demo.json demo.svg $(BENCH_DIR)-demo.json $(BENCH_DIR)-demo.svg
	rm -rf $(BENCH_DIR) $(RTL_DIR)
