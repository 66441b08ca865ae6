# bytejit: everything that is run by hand. `make help` lists it.
# PY=python3 uses a Python that has everything already (a GPU machine); else .venv is made and filled first.

BASE  ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null && echo $$p && break; done)
VENV  := .venv
TORCH := torch==2.13.0
ifdef PY
READY :=
else
PY    := $(VENV)/bin/python
READY := $(VENV)/.ready
endif
ARGS  ?=
JOBS  ?= 2
export PYTHONPATH := src

.PHONY: help setup demo test lint check docs golden sizes bench bench-models bench-compile bench-growth bench-dispatch bench-costs bench-ops accuracy fuzz ambient soak opinfo asan
.PHONY: test-versions clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(READY)  ## make .venv with all that the other targets need

# torch first and pinned: a bare "torch" may bring gigabytes of CUDA packages. A torch that $(BASE) has is used as it is.
# torchvision as it fits that torch; where none does, the newest, without its dependencies, which would bring another torch.
# Without PYTHONPATH: pip would take src/*.egg-info, which `pip install .` leaves, for an installed package that lacks others.
$(VENV)/.ready: PYTHONPATH :=
$(VENV)/.ready: pyproject.toml
	@$(BASE) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || \
	    { echo "bytejit needs Python 3.11 to 3.14; $(BASE) is not: make BASE=/path/to/python"; exit 1; }
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || echo "no C++ compiler found: install g++, or CPU graphs run through torch"
	@if $(BASE) -c 'import torch' 2>/dev/null; then $(BASE) -m venv --system-site-packages $(VENV); else $(BASE) -m venv $(VENV); fi
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH)"; $(VENV)/bin/pip install -q $(TORCH); }
	@echo "installing bytejit and what its tests need"
	@$(VENV)/bin/pip install -q -e '.[dev]'
	@$(VENV)/bin/python -c 'import timm' 2>/dev/null || \
	    $(VENV)/bin/pip install -q torchvision timm "torch==$$($(VENV)/bin/python -c 'import torch; print(torch.__version__)')" || \
	    $(VENV)/bin/pip install -q --no-deps torchvision timm
	@touch $@

demo: $(READY)   ## compile ResNet-18 and BERT-base: speed and errors compared with eager
	@$(PY) benchmarks/demo.py $(ARGS)

test: $(READY)   ## all tests, two processes; JOBS=4
	$(PY) -m pytest tests -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-versions:   ## the suite on every pair of Python and torch; ARGS="py314-t215 --short --write"
	$(BASE) -m tests.versions $(ARGS)

lint: $(READY)   ## ruff's lint and format, types
	$(PY) -m ruff check src tests examples benchmarks docs setup.py
	$(PY) -m ruff format --check src tests examples benchmarks docs setup.py
	$(PY) -m mypy

check: lint      ## lint, and the tests of import order, file sizes and documentation
	$(PY) -m pytest tests/test_layers.py tests/test_sizes.py tests/test_docs.py

docs: $(READY)   ## write docs/api.md and docs/architecture.svg anew
	$(PY) docs/make_api.py
	$(PY) docs/make_picture.py

golden: $(READY) ## write the golden files anew; review the diff like code
	$(PY) -m pytest tests -k golden --write-golden $(ARGS)

sizes: $(READY)  ## lines, longest files and functions, for whoever reviews
	@$(PY) benchmarks/sizes.py

bench: $(READY)  ## eager, torch.compile and bytejit in turn; writes docs/benchmarks.md and its plot
	$(PY) benchmarks/bench.py --write $(ARGS)

bench-models: $(READY)    ## eager and bytejit on 46 models and loops, resumable; writes docs/models.md; ARGS="--peer swin"
	$(PY) benchmarks/bench_models.py --write $(ARGS)

bench-compile: $(READY)   ## cold and warm compile seconds, in fresh processes
	$(PY) benchmarks/bench_compile.py $(ARGS)

bench-growth: $(READY)    ## how compiling grows with the graph, by stage; ARGS="chain --sizes 5000 10000 20000"
	$(PY) benchmarks/bench_growth.py $(ARGS)

bench-ops: $(READY)       ## single operators beside eager on a CPU; ARGS="--backward --dtype bfloat16 --below 0.95"
	$(PY) benchmarks/bench_ops.py $(ARGS)

bench-dispatch: $(READY)  ## microseconds of a call without its kernels
	$(PY) benchmarks/bench_dispatch.py $(ARGS)

bench-costs: $(READY)     ## capture beside torch.compile's, breaks at every line, plain loops, the import
	$(PY) benchmarks/bench_costs.py $(ARGS)

accuracy: $(READY)        ## distances from float64 beside eager's, on this CPU's instructions and on AVX2; ARGS="--seeds 1 bert"
	$(PY) benchmarks/accuracy.py $(ARGS)
	$(PY) benchmarks/accuracy.py --avx2 $(ARGS)

fuzz: $(READY)   ## 10,000 random programs against eager; ARGS="--count 500 --seed 7 --jobs 16 --resume FILE"
	$(PY) -m tests.fuzz --count 10000 $(ARGS)

ambient: $(READY) ## all programs under all managers of torch's state, with breaks, exceptions and training
	$(PY) -m pytest tests/programs/test_ambient.py --all-ambient $(ARGS)

soak: $(READY)   ## 10,000 calls over 50 models and functions that come and go: results, memory, tables, latency
	BYTEJIT_SUPPRESS_ERRORS=0 $(PY) -m tests.soak $(ARGS)

# The units are found by their flags too, so the cache of kernels may be shared. PYTHONMALLOC: each object is a block of its own,
# whose use after its end is seen. Leaks are not looked for: Python itself leaves some.
ASAN_TESTS ?= tests/guards tests/tracer/test_guards.py tests/kernels/test_prelude.py tests/kernels/test_conv.py \
              tests/kernels/test_attention.py tests/codegen/test_golden.py tests/runtime/test_soak.py
asan: $(READY)   ## the compiled units, of guards and of kernels, under gcc's address sanitizer, on a sample of the tests
	BYTEJIT_CXX="g++ -fsanitize=address -fno-omit-frame-pointer -g" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so):$$(g++ -print-file-name=libstdc++.so)" $(PY) -m pytest $(ASAN_TESTS) $(ARGS)

opinfo: $(READY) ## torch's own operator table against eager, hours; ARGS="--jobs 8 --json rows.jsonl [--device cuda]", ARGS=--modules: its modules
	$(PY) -m tests.opinfo $(ARGS)

clean:           ## delete .venv and what was built
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis bytejit_debug
