# Every target sets up what it needs in .venv first, and does nothing when that is up to date.
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
# Every version has a folder of its own in the site; build/docs/index.html leads to the newest one.
SITE := build/docs
# Files run in parallel, those with slow tests first (tests/conftest.py). By default xdist keeps files
# with few tests for the end, and these take longest. A worker that crashes ends the run with the name
# of its test; xdist waits forever for a replacement.
WORKERS := -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
SCRIPTS := .ci/run requirements/setup.sh

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## only the set-up: Python packages into .venv
	@requirements/setup.sh

run: setup ## run the default pipeline end to end
	@$(BIN)/sluice run $(ARGS)

test: setup ## all tests but the exhaustive ones and those for a GPU (ARGS='-k gate' picks some)
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: setup ## only the tests that need more than a second, and the exhaustive ones
	@$(BIN)/python -m pytest -m '(slow or exhaustive) and not gpu' $(ARGS)

test-gpu: setup ## only the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu $(ARGS)

coverage: setup ## all tests, and which lines and branches they run
	@$(BIN)/python -m coverage run -m pytest -q $(ARGS)
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report

dev: setup ## Dagster's web page on this machine only
	@$(BIN)/sluice dev $(ARGS)

check: setup ## format, lint, types, shell scripts, pipeline files
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/shellcheck $(SCRIPTS)
	@$(BIN)/dg check yaml

docs: setup ## the documentation site in build/docs, with all links checked
	@version=$$($(BIN)/python -c 'from sluice import __version__; print(__version__)') && \
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html \
		-d build/.doctrees docs $(SITE)/$$version $(ARGS) && \
	echo "$(SITE)/index.html"

pictures: setup ## take the pictures of the documentation again, from a real run (about 10 minutes)
	@$(BIN)/python docs/pictures.py $(ARGS)

format: setup ## rewrite the code as `make check` wants it
	@$(BIN)/ruff format --quiet $(SOURCES)
	@$(BIN)/ruff check --fix --quiet $(SOURCES)

lock: ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade for newer versions)
	@requirements/setup.sh --locked-only
	@$(BIN)/python requirements/lock.py $(ARGS)

licenses: setup ## list the licences of the dependencies in docs/licenses.md
	@$(BIN)/python -m requirements.licenses

sbom: setup ## write the bill of materials, dist/sbom.cdx.json (ARGS='--torch torch-cpu.txt')
	@$(BIN)/python -m requirements.sbom $(ARGS)

audit: setup ## look for known vulnerabilities of the locked packages, at api.osv.dev
	@$(BIN)/python -m requirements.audit $(ARGS)

clean: ## remove .venv and caches; runs and models in SLUICE_HOME stay
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache htmlcov .coverage .coverage.*
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
