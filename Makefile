# Targets: venv oracle demo bringup chat test test-all lint format docs lock clean. `make bringup` is the tour.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.SHELLFLAGS := -ec

VENV ?= .venv
DEMO ?= .demo
TARGET ?= cpu
MODEL := smollm2-135m
BUNDLE := $(DEMO)/bundles/$(MODEL)-$(TARGET)
BRINGUPS := $(DEMO)/bringups
JOBS ?= 2

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check
LOCKED := --quiet --no-deps --require-hashes

# A stamp is named after the content of the locks, so a changed lock installs again and a touched one does not.
CORE_STAMP := $(VENV)/.core-$(shell cat requirements.lock requirements-zig.lock pyproject.toml | cksum | cut -d' ' -f1)
ORACLE_STAMP := $(VENV)/.oracle-$(shell cat requirements-oracle.lock pyproject.toml | cksum | cut -d' ' -f1)

.PHONY: help venv oracle demo demo-gemma bringup chat test test-all lint format docs lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

venv: $(CORE_STAMP) ## make $(VENV) from the locks (does nothing when it is current)

$(CORE_STAMP): | $(VENV)/.made
	@echo "== venv: install locked packages"
	$(PIP) install $(LOCKED) -r requirements.lock
	command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || \
	  { echo "no system C compiler: install the ziglang wheel"; $(PIP) install $(LOCKED) -r requirements-zig.lock; }
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(PIP) check
	rm -f $(VENV)/.core-*
	touch $@

# The first interpreter that is new enough and can make environments; PYTHON=... chooses another.
$(VENV)/.made:
	@for p in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "== venv: $$($$p --version) in $(VENV)"; $$p -m venv $(VENV) && touch $@; exit; fi; \
	done; echo "plow needs Python 3.11 or newer with venv -> install it, or say make PYTHON=/path/to/python3" >&2; exit 2

oracle: $(ORACLE_STAMP) ## add the oracle (torch, transformers) to the environment

# torch's version is pinned in pyproject.toml but its hash is not: CPU and CUDA builds share the version number.
$(ORACLE_STAMP): $(CORE_STAMP)
	@echo "== venv: install the oracle (torch, transformers)"
	$(PIP) install $(LOCKED) -r requirements-oracle.lock
	$(PIP) install --quiet --no-build-isolation --editable '.[oracle]'
	rm -f $(VENV)/.oracle-*
	touch $@

demo: $(DEMO)/$(MODEL)/config.json ## get the demo checkpoint (SmolLM2-135M-Instruct)
demo-gemma: $(DEMO)/gemma3-270m/config.json ## get the second demo checkpoint (Gemma-3-270M, Gemma terms)

$(DEMO)/%/config.json: | $(CORE_STAMP)
	@echo "== demo: $*"
	$(PY) -m plow.checkpoint.demo $* --out $(DEMO)/$*

bringup: $(ORACLE_STAMP) $(DEMO)/$(MODEL)/config.json ## checkpoint -> seven gated stages -> a served answer
	@echo "== bringup: llama on $(TARGET)"
	$(BIN)/plow-bringup new llama --checkpoint $(DEMO)/$(MODEL) --target $(TARGET) --root $(BRINGUPS) --bundle-out $(BUNDLE)
	@$(MAKE) --no-print-directory chat

chat: | $(CORE_STAMP) ## serve the bundle, ask one question over HTTP, stop the server
	@echo "== chat: one question over HTTP"
	$(PY) -m plow.cli.ask --assets $(BUNDLE) "What is the capital of France?"

test: $(CORE_STAMP) ## the default tests (no torch, no real weights)
	$(PY) -m pytest -n $(JOBS)

test-all: $(ORACLE_STAMP) $(DEMO)/$(MODEL)/config.json $(DEMO)/gemma3-270m/config.json ## also real weights, oracle, slow
	$(PY) -m pytest -n $(JOBS) -m 'not gpu'

lint: $(CORE_STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(CORE_STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix .

docs: $(CORE_STAMP) ## generate the pages of docs/ that list things (packet ABI, operators, rules)
	$(PY) -m plow.cli.docs

# Versions stay as they are unless a requirement forces a change; delete a lock first to move to the newest.
UV := $(VENV)/lock-tool/bin/uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links
lock: | $(VENV)/.made ## write the lock files anew from pyproject.toml
	test -x $(UV) || { $(PY) -m venv $(VENV)/lock-tool; $(VENV)/lock-tool/bin/python -m pip install --quiet uv; }
	$(COMPILE) pyproject.toml --extra demo --extra dev -o requirements.lock
	sed -n 's/^oracle = .*"\(transformers==[^"]*\)".*/\1/p' pyproject.toml > $(VENV)/oracle.in
	printf 'networkx\nsetuptools\nsympy\n' >> $(VENV)/oracle.in
	$(COMPILE) $(VENV)/oracle.in --constraints requirements.lock -o requirements-oracle.lock
	echo ziglang > $(VENV)/zig.in
	$(COMPILE) $(VENV)/zig.in -o requirements-zig.lock

clean: ## remove environments, caches and the demo
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
