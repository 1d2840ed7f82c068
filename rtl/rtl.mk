# Lint, proofs and simulation of the hardware; included by the Makefile of the repository.

RTL_TESTS := $(TARGET)/rtl/tests
RTL_FOLDERS ?=
RTL_LINT := verilator --lint-only -Wall --top-module pd_stack -y rtl/src rtl/lint.vlt rtl/gen/pd_abi_pkg.sv rtl/src/pd_stack.sv

.PHONY: rtl rtl-model rtl-perf rtl-synth rtl-packages rtl-lint rtl-test rtl-regress

rtl-packages:
	@missing=; \
	command -v verilator >/dev/null || missing="$$missing verilator"; \
	command -v yosys >/dev/null || missing="$$missing yosys"; \
	command -v g++ >/dev/null || missing="$$missing g++"; \
	[ -e /usr/include/zlib.h ] || missing="$$missing zlib1g-dev"; \
	python3 -m ensurepip --version >/dev/null 2>&1 || missing="$$missing python3-venv"; \
	python3 -c 'import ctypes, os, sysconfig as s; n = s.get_config_var("INSTSONAME"); p = os.path.join(s.get_config_var("LIBDIR"), n); ctypes.CDLL(p if os.path.exists(p) else n)' \
	    2>/dev/null || missing="$$missing python3 python3-venv libpython3-dev"; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "missing:$$missing (Debian's names)" >&2; exit 1; \
	fi; \
	echo "installing:$$missing"; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing

rtl-lint: rtl-packages ## check the hardware's sources: three widths, small and large
	@$(foreach width,512 1024 2048,$(RTL_LINT) -GTLP_WIDTH=$(width) &&) \
	$(RTL_LINT) -DPD_ASSERT -GQUEUES=16 -GLOG2_DEPTH=6 && \
	$(RTL_LINT) -GQUEUES=2 -GTAGS=32 -GBATCHES=8 -GBUFFER_BYTES=32768 && \
	$(RTL_LINT) -GCOPY_BYTES_MAX=65536 -GBUFFER_BYTES=1048576 -GTAGS=256

rtl-test: rtl-packages ## prove and simulate the hardware (RTL_FOLDERS='pd_stack ..': only those of rtl/tests)
	rtl/formal/run.sh $(RTL_TESTS)/formal
	rtl/tests/setup.sh $(RTL_TESTS)/venv
	$(RTL_TESTS)/venv/bin/python rtl/tests/run.py --jobs $(JOBS) --build $(RTL_TESTS)/sim $(RTL_FOLDERS)

rtl-regress: rtl-packages ## the same at length: all widths and sizes, a new seed each time
	rtl/formal/run.sh $(RTL_TESTS)/formal
	rtl/tests/setup.sh $(RTL_TESTS)/venv
	$(RTL_TESTS)/venv/bin/python rtl/tests/run.py --long --jobs $(JOBS) --build $(RTL_TESTS)/sim $(RTL_FOLDERS)

# The hardware of rtl/ as a shared object that the rtl engine loads; nothing else needs Verilator.
RTL_MODEL := crates/engine-rtl/sim/build.sh

rtl: SIMULATING := yes
rtl: packages rtl-model ## build the simulated hardware for engine "rtl" (Verilator)

rtl-model:
	JOBS=$(JOBS) $(RTL_MODEL) pd_stack $(TARGET)/rtl --trace-fst

rtl-perf: SIMULATING := yes
rtl-perf: deps ## figures of the hardware in cycle-accurate simulation, to RTL_DIR
	$(foreach width,512 1024 2048,JOBS=$(JOBS) $(RTL_MODEL) pd_stack_$(width) $(TARGET)/rtl -GTLP_WIDTH=$(width) &&) true
	$(CARGO) run --package pd-bench --example rtl_perf --jobs $(JOBS) -- $(RTL_DIR)

rtl-synth: SYNTHESISING := yes
rtl-synth: packages ## size of the hardware by synthesis (Yosys 0.23 to 0.40), to RTL_DIR
	rtl/synth/synth.py $(RTL_DIR)
