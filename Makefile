# Everything happens in .venv; PYTHON chooses the interpreter that makes it.
PYTHON ?= python3
OLDEST_PYTHON ?= python3.11
BIN := .venv/bin
SOURCES := src benchmarks examples tests docs/conf.py docs/tools

.PHONY: install help run test test-oldest fuzz chromium postgresql triton docs notebooks tables tables-list bench bench-peers clean

install: .venv/installed  ## .venv, with everything for development

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: install  ## what a rule is worth beside ten labels, and losses of label sets, as a table and a page
	$(BIN)/lossnet demo --output runs/demo

test: install chromium postgresql triton  ## formatting, lint, types, tests, the examples in docstrings and pages, the site
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# Old torch may hang where a process with threads of its own is forked.
FORKING := tests/training/engines/test_processes.py

test-oldest: .venv-oldest/installed  ## the tests with the oldest Python and libraries that pyproject.toml claims
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest -n 2 $(TESTS) --ignore $(FORKING)
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest $(FORKING)

# With an old Starlette, the client that tests the server is httpx instead of httpx2.
.venv-oldest/installed: pyproject.toml constraints-oldest.txt
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints-oldest.txt -e '.[dev]' httpx
	touch $@

N ?= 50000
fuzz: install  ## N damaged inputs against every reader, the configuration and the server; failures go to the corpus
	FUZZ=$(N) OMP_NUM_THREADS=1 nice $(BIN)/pytest -rA --tb=short tests/fuzz

chromium:  ## the browser that looks at the report; where there is none and none can be had, its tests are skipped
	@command -v chromium >/dev/null || apt-get install --yes chromium >/dev/null 2>&1 || echo "no chromium here"

postgresql:  ## the server that workers of a search share; without one, its test is skipped
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| apt-get install --yes postgresql >/dev/null 2>&1 || echo "no PostgreSQL here"

triton: install  ## what interprets a GPU's kernels where there is none; without it, their tests are skipped
	@$(BIN)/python -c "import triton" 2>/dev/null \
		|| $(BIN)/pip install --quiet --disable-pip-version-check --no-deps triton==3.9.0 2>/dev/null \
		|| echo "no Triton here"

docs: install  ## the site, in build/docs; the tests build it too
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs build/docs
	@echo "open build/docs/index.html"

notebooks: install  ## the tutorials' notebooks, from their pages
	$(BIN)/python docs/tools/notebooks.py

JOBS ?= 1
SEEDS ?= 3
TABLES = $(BIN)/python -m benchmarks tables --output runs/tables --seeds $(SEEDS) $(if $(DATA),--data-dir $(DATA))
tables: install  ## the benchmarks that pages of results stand on, what is missing or outdated (DATA=DIR JOBS=N SEEDS=N)
	$(TABLES) --jobs $(JOBS)

tables-list: install  ## what `make tables` would run, and how long
	$(TABLES) --dry-run

bench: install  ## what the framework costs, as a ratio to bare PyTorch
	$(BIN)/python -m benchmarks overhead --output runs/overhead

bench-peers: install  ## what implicit gradients cost, beside betty and TorchOpt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python betty-ml==0.2.1
	$(BIN)/python -m benchmarks hypergradient --device cpu --output runs/hypergradient

clean:  ## remove what the other targets made
	rm -rf .venv .venv-oldest runs build dist docs/api .mypy_cache .ruff_cache .hypothesis
