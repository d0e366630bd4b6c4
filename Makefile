# The whole developer interface. `make demo` and `make test` do their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11) and "planpaint needs Python 3.11 or newer: make PYTHON=python3.11")

.PHONY: install demo demo-model up test api-fuzz loadtest chaos check audit fix bench lock clean

install: $(STAMP)

# torch first and by pip alone: its build differs from host to host, so the lock leaves it out.
$(STAMP): pyproject.toml requirements.lock
	test -x $(BIN)/pip || { $(PYTHON) -c '$(NEW_ENOUGH)' && $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip install --quiet --disable-pip-version-check "torch>=2.13,<2.14"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/pip check --disable-pip-version-check
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/planpaint demo

# Hours on two cores; goes on where it was interrupted. What it makes lies in out/demo-model/checkpoint.
demo-model: $(STAMP)
	$(BIN)/python -m demo_model make

up: $(STAMP)
	$(BIN)/planpaint up

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# As in the tests, with more examples and other ones each time, against a whole stack.
api-fuzz: $(STAMP)
	FUZZ_EXAMPLES=200 $(BIN)/python -m pytest -q --timeout 7200 tests/api/test_schema.py tests/api/test_lifecycle.py

# A stack of its own and all kinds of users for a minute; the report is out/loadtest/report.html.
loadtest: $(STAMP)
	$(BIN)/python -m loadtest.run

# Two minutes of kills with each of three seeds, every row of tests/chaos/README.md, and the whole service behind TLS,
# with a user for each role: half an hour of an idle machine.
chaos: $(STAMP)
	for seed in 1 2 3; do $(BIN)/planpaint bench chaos --jobs 500 --seconds 120 --seed $$seed --json || exit 1; done
	$(BIN)/python -m pytest -m "chaos or not chaos" --timeout 1800 -rP tests/chaos tests/operators/test_secured.py

check: $(STAMP)
	$(BIN)/ruff format --check app api workers demo_model loadtest tests
	$(BIN)/ruff check app api workers demo_model loadtest tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

# Known vulnerabilities of what the lock names. Without the advisory service it says so and is no failure.
audit: $(STAMP)
	$(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/pip install --quiet uv
	$(BIN)/python .ci/audit.py $(BIN)/uv requirements.lock

fix: $(STAMP)
	$(BIN)/ruff format app api workers demo_model loadtest tests
	$(BIN)/ruff check --fix app api workers demo_model loadtest tests

bench: $(STAMP)
	$(BIN)/planpaint bench ar
	$(BIN)/planpaint bench dit
	$(BIN)/planpaint bench api

# Hashes of everything but torch and what only some builds of torch bring along.
lock: $(STAMP)
	$(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --no-header --no-annotate \
		--extra embedded --extra worker --extra dev -o $(VENV)/everything.txt
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --no-header --generate-hashes \
		--extra embedded --extra worker --extra dev -o requirements.lock \
		$$(grep -oE '^(torch|triton|setuptools|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==' $(VENV)/everything.txt \
		| sed 's/==//; s/^/--no-emit-package /' | sort -u)

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
