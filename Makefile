# The targets a person needs; each makes .venv first when it is missing. See README.md.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.setup-stamp

.PHONY: setup demo up test check bench protos format

setup: $(STAMP)

$(STAMP): uv.lock pyproject.toml $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || python3 -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv sync --quiet --frozen --all-packages --inexact
	touch $@

protos: setup
	$(BIN)/python protos/generate.py

format: setup
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
