# make demo: install, then generate, fill and score with the shipped model, and fine-tune it.
# make test: install, then run the linter, the type checker and all tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check clean

demo: $(READY)
	$(BIN)/unmask demo

test: lint types check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/python -m pytest -m gpu $$(grep -rl --include='test_*.py' pytest.mark.gpu tests)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not gpu" $(PYTEST_ARGS)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
