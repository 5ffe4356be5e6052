# Everything a fresh machine needs: make demo, make test. Python 3.11 to 3.13.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test fast bench lint clean

demo: .venv/installed
	$(BIN)/python -m mhprobe.train +experiment=digits_vit

test: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest

fast: .venv/installed-test
	$(BIN)/python -m pytest -m "not slow"

bench: .venv/installed-test
	$(BIN)/python -m benchmarks

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install -q -e ".[test]"
	touch $@

clean:
	rm -rf .venv dist build
