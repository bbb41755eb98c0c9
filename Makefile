# `make demo`, `make test` and `make docs` are the three commands. Each makes its own .venv first, and needs nothing but
# Python 3.11 or newer (on Debian with python3-venv), git and make. A second call finds the .venv and starts at once.

PYTHON ?= python3
MINUTES ?= 10
ARGS ?=
export LATEST ?=
# Tests of processes wait most of their time: three side by side keep two cores busy.
TEST_WORKERS ?= 3
# Percent of the lines of the product; `make test-all` fails below it. Measured without the tests of processes, faults,
# launchers and the page in a browser, which take most of the time: with them it is higher.
COVERED := 90
SEED := $(or $(SEED),$(shell date +%s))
SHAPE_TESTS := tests/test_layers.py tests/test_tree.py tests/test_contributing.py tests/deploy/test_readmes.py \
    tests/test_readme.py::test_every_link_and_every_named_test_leads_to_a_file
PY := .venv/bin/python
BOOTSTRAP := scripts/bootstrap.py

# Tests start thousands of processes, and each would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo lint check test test-rest test-all test-summary system-packages docs screenshots matrix bench \
    bench-lake three-collectors soak soak-lake switch-off constraints integrations clean python

help:
	@echo "make demo              train a small model on two ranks, then ask chiplog what happened (two minutes)"
	@echo "make check             lint, types, imports, links and the tests of pure modules, within a minute"
	@echo "make test              lint, types, imports and the tests of each module and promise; the last line is pytest's summary"
	@echo "make test-all          lint, types, imports and all tests, each once (half an hour)"
	@echo "make test-rest         the tests that make test leaves out"
	@echo "make system-packages   install what tests need in addition to Python, as root with apt-get; make test does it first"
	@echo "make docs              build the documentation site into build/site; fails on any warning"
	@echo "make screenshots       pictures of all views of the page, of 64 ranks and of the demo, for the next make docs"
	@echo "make matrix            start a training with every launcher, and print what arrived as a table"
	@echo "make integrations      train with real libraries, import what they wrote, and print what SQL has of it as a table"
	@echo "make bench             measure: cost of log(), rates, latencies"
	@echo "make bench-lake        read a store in other engines, and print as a table what each has of it"
	@echo "make three-collectors MINUTES=n   kill three collectors of one store, lose one of them, and ask five readers"
	@echo "make soak MINUTES=n    kill, cut, damage and fuzz for n minutes (default 10), and print the counts reached"
	@echo "make soak-lake MINUTES=n   likewise, for stores alone, on disk and S3"
	@echo "make switch-off        switch each safeguard off in turn, and see its fault test turn red"
	@echo "make constraints       write constraints.txt: the newest versions of all dependencies, which other targets then install"
	@echo "make clean             remove .venv, caches and the demo's data"
	@echo
	@echo "ARGS='…' is handed on, as in: make test ARGS='-k spool'    make demo ARGS=--kill-agent"
	@echo "LATEST=1 installs the newest versions instead of those in constraints.txt: make test LATEST=1"
	@echo "PYTHON=… names another interpreter: make test PYTHON=python3.12"

python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; install Python 3.11 or newer" >&2; exit 1; }

demo: python
	@$(PYTHON) $(BOOTSTRAP) torch
	@$(PY) sdk/examples/demo.py $(ARGS)

lint: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@echo "ruff check"
	@$(PY) -m ruff check --quiet
	@echo "ruff format --check"
	@$(PY) -m ruff format --check --quiet
	@echo "mypy --strict"
	@$(PY) -m mypy --no-error-summary
	@echo "import-linter"
	@$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()" --no-cache --no-logo

# The order of tests is another each time; `make check SEED=n` repeats one.
check: lint
	@echo "links and lists of the documentation"
	@PYTHONPATH=scripts $(PY) -m cogapp --check --diff --verbosity=0 $$(git ls-files 'docs/*.md')
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet --site-dir build/check-site
	@echo "pytest: the shape of the repository"
	@$(PY) -m pytest $(SHAPE_TESTS)
	@echo "pytest -m pure --shuffle $(SEED)"
	@$(PY) -m pytest -m pure --shuffle $(SEED) -n 2 --cov --cov-report= $(ARGS)
	@echo "the pure tests cover $$($(PY) -m coverage report --format=total) % of the lines of the product"

# What `make check` does besides lint is among the tests: the lists of the documentation, and with `make test-rest` the site.
# In a fresh clone each worker would rewrite the assertions of all test modules: they are cached first, beside lint's one core.
test: system-packages python
	@$(PYTHON) $(BOOTSTRAP) dev
	@[ -e tests/__pycache__ ] || $(PY) -m pytest --collect-only -qq -m "not full" >/dev/null 2>&1 &
	@$(MAKE) --no-print-directory lint
	@echo "pytest -m 'not full' $(ARGS)"
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadgroup -m "not full" $(ARGS)

test-rest: system-packages
	@$(PYTHON) $(BOOTSTRAP) dev
	@echo "pytest -m full $(ARGS)"
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadgroup -m full $(ARGS)

test-all: system-packages lint
	@echo "pytest $(ARGS)"
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadgroup --cov --cov-report= $(ARGS)
	@mkdir -p build
	@$(PY) -m coverage report --format=total $(if $(ARGS),,--fail-under=$(COVERED)) > build/covered || \
		{ echo "all tests cover $$(cat build/covered) % of the lines, less than $(COVERED)"; exit 1; }
	@echo "all tests cover $$(cat build/covered) % of the lines, child processes included (at least $(COVERED))"

# Before `lint`, which makes .venv: its C part needs a compiler.
system-packages: python
	@$(PYTHON) scripts/system_packages.py

# One line over the pytest runs of several targets: those that ran with CHIPLOG_TEST_REPORTS=$(REPORTS).
test-summary: python
	@$(PYTHON) scripts/test_summary.py "$(REPORTS)"

# Lists that repeat code are written again first, so a page never disagrees with the code that it was built from.
docs: python
	@$(PYTHON) $(BOOTSTRAP) docs
	@PYTHONPATH=scripts $(PY) -m cogapp -r --verbosity=1 $$(git ls-files 'docs/*.md')
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)
	@echo "built build/site/index.html"

screenshots: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) scripts/screenshots.py build/screenshots $(ARGS)
	@echo "pictures are in build/screenshots; make docs shows them"

matrix: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.launchers.matrix $(ARGS)

# The libraries are in build/integrations, with the versions of tests/integrations/constraints.txt.
integrations: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.integrations.matrix -n 2 $(ARGS)

bench: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.bench.run $(ARGS)

# The engines are in build/lake.
bench-lake: system-packages
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.bench.lake.run $(ARGS)

# The engines are in build/lake, as for bench-lake.
three-collectors: system-packages
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.bench.lake.three_collectors --minutes $(MINUTES)

soak: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@echo "soak for $(MINUTES) minutes"
	@CHIPLOG_SOAK_MINUTES=$(MINUTES) $(PY) -m pytest -m soak $(ARGS)

# On this disk and on a server of S3.
soak-lake: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@echo "kill the processes of a store for $(MINUTES) minutes"
	@CHIPLOG_SOAK_MINUTES=$(MINUTES) $(PY) -m pytest -m soak tests/fault/test_store_kills.py tests/fault/test_store_maintenance.py $(ARGS)

switch-off: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) -m tests.fault.switch_off $(ARGS)

constraints: python
	@$(PYTHON) $(BOOTSTRAP) dev
	@$(PY) scripts/constraints.py $(ARGS)

# The demo's daemons leave by themselves when idle; asked first, they do not lose their directory while they write.
clean:
	@if [ -e demo-data/.chiplog-demo ] && [ -x .venv/bin/chiplog ]; then \
	    CHIPLOG_DIR=demo-data .venv/bin/chiplog down >/dev/null 2>&1 || true; fi
	@if [ -e demo-data/.chiplog-demo ]; then rm -rf demo-data; fi
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist
	@find agent collector schemas scripts sdk tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "removed .venv, caches and the demo's data"
