# The two commands of the README are `make demo` and `make test`. Each sets up its own virtual environment, with the versions
# of requirements.lock: .venv-demo holds what a user installs, .venv also what the tests need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)-demo
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo test scorecard scorecard-long check lint types quick compiled servers docs release matrix screens bench peers lock clean

demo: $(DEMO)/.ready
	$(DEMO)/bin/tenuto demo

test: $(READY) lint types servers compiled
	$(BIN)/python -m pytest -n 2 --scorecard

# The rows of the reliability scorecard alone: a few minutes, or half an hour.
scorecard: $(READY) servers
	$(BIN)/python tests/scorecard.py

scorecard-long: $(READY) servers
	$(BIN)/python tests/scorecard.py --long

check: $(READY) lint types servers quick

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/sizes.py

types: $(READY)
	$(BIN)/mypy
	$(BIN)/basedpyright

# What a minute is enough for: not what needs a server or a browser, imports the frameworks, runs every snippet, starts every
# command, kills processes, or runs a backend's whole contract once more in another mode.
LATER := adapters aio/test_async_work.py audit backends/postgres backends/redis backends/remote cli capabilities/upkeep crash docs history hooks security servers \
  test_scorecard.py wrappers
quick: $(READY) compiled
	$(BIN)/python -m pytest -n 2 -q -m "not slow" -k "not cluster and not ProcessDurability and not TenantOfPostgres" $(LATER:%=--ignore tests/%)

# The tests start thousands of processes, and PYTHONDONTWRITEBYTECODE would have each compile the package again.
compiled: $(READY)
	$(BIN)/python -m compileall -q src tests

# What the tests need and no wheel carries: brought once into .servers, without root.
servers: $(READY)
	$(BIN)/python tests/support/pgbouncer.py
	$(BIN)/python tests/support/chromium.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir build/site

# Wheel and sdist, tried in empty environments, with a bill of materials and digests, in dist/.
release: $(READY)
	$(BIN)/python tests/release.py $(if $(QUICK),--quick)

# The whole suite on each of these, where it is installed, in an environment of its own.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
matrix:
	@for python in $(PYTHONS); do \
	  if $$python -c 1 2>/dev/null; then echo "== $$python"; $(MAKE) test PYTHON=$$python VENV=.venv-$$python || exit 1; \
	  else echo "== $$python is not installed: not tried"; fi; \
	done

# The pictures of the terminal and of the inspector in the README and the docs.
screens: $(READY)
	$(BIN)/python docs/internals/screens.py
	TENUTO_SCREENS=1 $(BIN)/python -m pytest -q tests/servers/test_inspector_page.py tests/audit/test_reports.py -k picture

bench: $(READY)
	$(BIN)/python -m bench

# What people use today, beside: in an environment of its own, for it brings a hundred packages.
peers: $(READY)
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python $(PIP_INSTALL) -r bench/requirements.txt hatchling editables
	$(VENV)-bench/bin/python $(PIP_INSTALL) --no-build-isolation -e .
	$(VENV)-bench/bin/python -m bench history langgraph sessions steps tasks growth

# The adapters whose frameworks are too large for the lock file, in environments of their own: about 1 GB.
frameworks: $(READY)
	$(BIN)/python tests/adapters/frameworks.py

# A python3 that is too old must say so, not fail inside pip.
define make_venv
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tenuto needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(1)
endef

$(READY): pyproject.toml requirements.lock
	$(call make_venv,$(VENV))
	$(BIN)/python $(PIP_INSTALL) -r requirements.lock
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@

# Older versions of pip apply PIP_CONSTRAINT also to what builds the package, newer ones PIP_BUILD_CONSTRAINT.
$(DEMO)/.ready: pyproject.toml requirements.lock
	$(call make_venv,$(DEMO))
	PIP_CONSTRAINT=requirements.lock PIP_BUILD_CONSTRAINT=requirements.lock $(DEMO)/bin/python $(PIP_INSTALL) -e .
	touch $@

# Renew the lock file: resolve the groups of pyproject.toml anew and write down what came out. The wheel of
# claude-agent-sdk carries a program of 350 MB that no test runs; its source does not.
SLIM := --no-binary claude-agent-sdk
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-lock/bin/python -m pip install --quiet $(SLIM) hatchling editables --group dev .
	echo "$(SLIM)" > requirements.lock
	$(VENV)-lock/bin/python -m pip freeze --exclude tenuto >> requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(DEMO) $(VENV)-bench $(VENV)-frameworks-* .servers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
