# Every target sets up what it needs: Python 3.11 or later and make are enough to begin with.
# A stamp in .venv remembers the installation, so that only a change of pyproject.toml repeats it.

VENV := .venv
BIN := $(VENV)/bin
STAMP_VENV := $(VENV)/.stamp-venv
STAMP_RUN := $(VENV)/.stamp-run
STAMP_DEV := $(VENV)/.stamp-dev
STAMP_BENCH := $(VENV)/.stamp-bench
STAMP_DOCS := $(VENV)/.stamp-docs
STAMP_RAY := $(VENV)/.stamp-ray
PIP_INSTALL := $(BIN)/python tools/install.py

# PYTHON names the interpreter for .venv; left empty, the candidates are tried in turn.
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11)
SOAK_SECONDS ?= 600
# Processes that run tests. Each has a service and a server of its own, which its tests share. A third of a test's time
# is waiting, so four more than there are cores keep the cores busy.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)
PYTEST = $(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=worksteal
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-unit test-both-levels test-sandbox test-compat test-web test-cluster test-cluster-sessions test-cluster-nodes \
	test-gpu lint docs bench soak soak-cluster dist clean

help:
	@echo 'make run     start the service, and open its page   (ARGS="--port 9000" is handed on)'
	@echo 'make test    run all tests                (ARGS="-k stdin" is handed on)'
	@echo 'make test-unit         run the tests that start no process, in half a minute'
	@echo 'make test-both-levels  run in a sandbox the tests that can differ by isolation level'
	@echo 'make test-sandbox      run in a sandbox all tests that start sessions'
	@echo 'make test-compat       run tests with real clients of other servers (NEWEST=1: the newest of each;'
	@echo '                       with Chromium also JupyterLab)'
	@echo 'make test-web          use the console in a browser (apt-get install chromium)'
	@echo 'make test-cluster      run sessions on a local Ray cluster (root: also cut its network)'
	@echo '.ci/run      lint, all tests, and those that can differ by level once more in a sandbox'
	@echo 'make lint    ruff, mypy, the direction of imports, the generated client'
	@echo 'make docs    build the documentation as a site, in build/docs/site'
	@echo 'make bench   measure, list all targets    (ARGS=--quick: a look)'
	@echo 'make test-gpu          run the tests that need a GPU   (INGLE_TORCH_PYTHON=... has torch)'
	@echo 'make soak    the long tests               (SOAK_SECONDS=$(SOAK_SECONDS))'
	@echo 'make soak-cluster      kill agents and gateways of a local Ray cluster, 300 rounds'
	@echo 'make dist    the wheel, the .mcpb bundle and server.json, in dist/'
	@echo 'make clean   remove .venv, caches and builds'
	@echo
	@echo 'PYTHON=python3.12 picks the interpreter when .venv is made; run "make clean" first to change it.'

run: $(STAMP_RUN)
	@$(BIN)/ingle serve --open $(ARGS)

test: $(STAMP_DEV)
	@$(PYTEST) $(ARGS)

test-unit: $(STAMP_DEV)
	@$(PYTEST) tests/unit $(ARGS)

test-both-levels: $(STAMP_DEV)
	@$(PYTEST) --isolation sandbox -m both_levels $(ARGS)

test-web: $(STAMP_DEV)
	@$(PYTEST) -m web --timeout=180 tests/web $(ARGS)

# Tests of one machine that are run on a cluster too: each verb once or more.
ON_CLUSTER = $(addprefix tests/,sessions/cells/test_cells.py sessions/cells/test_cell_errors.py \
	sessions/cells/test_code_help.py sessions/cells/test_variables.py sessions/output/test_output.py \
	sessions/control/test_waiting.py sessions/stdin/test_stdin.py sessions/state/test_forks.py \
	sessions/state/test_forks_interfaces.py sessions/state/test_checkpoints.py shell/test_shell_session.py \
	http/test_http.py http/test_http_batch.py http/test_http_files.py mcp/test_mcp_http.py mcp/test_mcp_tools.py)

# Each group shares one cluster, so that it runs in one process.
test-cluster: test-cluster-sessions test-cluster-nodes

test-cluster-sessions: $(STAMP_RAY)
	@$(BIN)/python -m pytest --cluster -m ray --timeout=180 $(ON_CLUSTER) $(ARGS)

# These kill nodes and count processes.
test-cluster-nodes: $(STAMP_RAY)
	@$(BIN)/python -m pytest -m ray --timeout=180 tests/cluster $(ARGS)

# No level changes these: they start no session, choose the level themselves, or are what a reader types.
SAME_AT_ALL_LEVELS = $(addprefix --ignore=tests/,unit docs isolation/test_attacks_root.py \
	isolation/test_attacks_user.py isolation/test_sandbox_user.py)

test-sandbox: $(STAMP_DEV)
	@$(PYTEST) --isolation sandbox $(SAME_AT_ALL_LEVELS) $(ARGS)

# CLIENTS="e2b_client daytona_client" picks some of the folders of tests/compat.
CLIENTS ?=
test-compat: $(STAMP_DEV)
	@JOBS=$(JOBS) $(BIN)/python tools/compat.py $(CLIENTS) -- $(ARGS)

test-gpu: $(STAMP_DEV)
	@$(BIN)/python -m pytest tests/gpu -rs $(ARGS)

lint: $(STAMP_DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/unasync.py --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

docs: $(STAMP_DOCS)
	@$(BIN)/python tools/build_site.py

bench: $(STAMP_BENCH)
	@$(BIN)/python bench/whole.py $(ARGS)

# A soak test may spend SOAK_SECONDS on work and as long again on checking it; only then is it stuck.
soak: $(STAMP_DEV)
	@SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m 'soak and not ray' \
		--timeout=$$(( $(SOAK_SECONDS) * 2 + 120 )) tests/soak $(ARGS)

soak-cluster: $(STAMP_RAY)
	@$(BIN)/python -m pytest -m 'soak and ray' --timeout=3600 tests/soak/test_cluster_soak.py $(ARGS)

dist: $(STAMP_DEV)
	@$(BIN)/python packaging/dist.py

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A candidate counts only if it runs: shims may point nowhere, and some systems ship Python without venv.
$(STAMP_VENV):
	@if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
		found=; \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
				>/dev/null 2>&1; then found=$$candidate; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo 'ingle needs CPython 3.11 or later with its venv and ensurepip modules.' >&2; \
			echo 'Tried without success: $(CANDIDATES).' >&2; \
			echo 'Install one (on Debian and Ubuntu: python3 and python3-venv), or name it: make PYTHON=/path/to/python' >&2; \
			exit 1; \
		fi; \
		rm -rf $(VENV) && "$$found" -m venv $(VENV); \
	fi
	@touch $@

$(STAMP_RUN): pyproject.toml | $(STAMP_VENV)
	@echo 'installing into $(VENV) what the service needs (about 110 MB)'
	@$(PIP_INSTALL) --editable .
	@touch $@

$(STAMP_DEV): pyproject.toml | $(STAMP_VENV)
	@echo 'installing into $(VENV) what tests and checks need (more than 1 GB, a few minutes)'
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(STAMP_RUN) $@

$(STAMP_BENCH): pyproject.toml $(STAMP_DEV)
	@echo 'adding to $(VENV) what the benchmarks compare with (first time takes about a minute)'
	@$(PIP_INSTALL) --editable '.[dev,bench]'
	@touch $@

$(STAMP_RAY): pyproject.toml $(STAMP_DEV)
	@echo 'adding Ray to $(VENV) (about 290 MB)'
	@$(PIP_INSTALL) --editable '.[dev,ray]'
	@touch $@

$(STAMP_DOCS): pyproject.toml $(STAMP_DEV)
	@echo 'adding to $(VENV) what builds the documentation (first time takes a few seconds)'
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@
