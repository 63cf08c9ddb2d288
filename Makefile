# Targets that need Python packages first install missing packages into .venv (requirements/setup.sh).
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-gpu coverage dev check docs pictures format lock licenses sbom \
	audit clean
ifdef PYTHON
export PYTHON
endif
export DAGSTER_DISABLE_TELEMETRY := yes
BIN := .venv/bin
SOURCES := sluice assets checks docs examples pipelines requirements tests
# The site has one folder for each version. build/docs/index.html redirects to the newest version.
SITE := build/docs
# Test files run in parallel. Files with slow tests run first (tests/conftest.py): xdist by default runs
# files with few tests last, and these files take longest. If a worker crashes, the run ends and prints
# the name of its test, because xdist would wait forever for a new worker.
WORKERS := -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
SCRIPTS := .ci/run requirements/setup.sh

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Python packages into .venv
	@requirements/setup.sh

run: setup ## run the default pipeline end to end
	@$(BIN)/sluice run $(ARGS)

test: setup ## run all tests except exhaustive tests and GPU tests (ARGS='-k gate' selects some)
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: setup ## run only the tests that need more than a second, and the exhaustive tests
	@$(BIN)/python -m pytest -m '(slow or exhaustive) and not gpu' $(ARGS)

test-gpu: setup ## run only the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu $(ARGS)

coverage: setup ## run the same tests as make test, and report the lines and branches that they miss
	@$(BIN)/python -m coverage run -m pytest -q $(ARGS)
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report

dev: setup ## start Dagster's web page, for this machine only
	@$(BIN)/sluice dev $(ARGS)

check: setup ## check format, lint, types, shell scripts and pipeline files
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/shellcheck $(SCRIPTS)
	@$(BIN)/dg check yaml

docs: setup ## build the documentation in build/docs; a broken link is an error
	@version=$$($(BIN)/python -c 'from sluice import __version__; print(__version__)') && \
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html \
		-d build/.doctrees docs $(SITE)/$$version $(ARGS) && \
	echo "$(SITE)/index.html"

pictures: setup ## generate the pictures of the documentation from a real run (about 10 minutes)
	@$(BIN)/python docs/pictures.py $(ARGS)

format: setup ## format the code, and fix lint errors that can be fixed automatically
	@$(BIN)/ruff format --quiet $(SOURCES)
	@$(BIN)/ruff check --fix --quiet $(SOURCES)

lock: ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade for newer versions)
	@requirements/setup.sh --locked-only
	@$(BIN)/python requirements/lock.py $(ARGS)

licenses: setup ## list the licences of the dependencies in docs/licenses.md
	@$(BIN)/python -m requirements.licenses

sbom: setup ## write the bill of materials, dist/sbom.cdx.json (ARGS='--torch torch-cpu.txt')
	@$(BIN)/python -m requirements.sbom $(ARGS)

audit: setup ## search api.osv.dev for known vulnerabilities of the locked packages
	@$(BIN)/python -m requirements.audit $(ARGS)

clean: ## remove .venv, build folders and caches, but not runs and models in SLUICE_HOME
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache htmlcov .coverage .coverage.*
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
