# TORCH=cpu installs the CPU build of torch (or name a folder or an index address that has one).
# The five commands. Each first brings .venv up to date: pipelines/set_up.py, standard library only.
# Another interpreter: make PYTHON=python3.12 repro. Another recipe: make repro RECIPE=gsm8k-smollm2.
# make repro VERBOSE=1 shows all output of DVC and of the stages.
PYTHON ?= python3
RECIPE ?=
VERBOSE ?=
TORCH ?=
# Values reach the shell as variables of the environment, so `RECIPE='x; command'` is a name and runs nothing. `value`
# keeps make from expanding what they contain.
override PYTHON := $(value PYTHON)
override RECIPE := $(value RECIPE)
override TORCH := $(value TORCH)
export PYTHON RECIPE TORCH
SET_UP := RETRACE_TORCH="$$TORCH" "$$PYTHON" pipelines/set_up.py
VENV_PYTHON := .venv/bin/python

# Where it is set, each of the hundreds of processes of a run compiles the project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: repro test ui docs set-up

repro:
	@$(SET_UP) repro $${RECIPE:+"$$RECIPE"}
	@$(VENV_PYTHON) -m pipelines.commands.repro $${RECIPE:+"$$RECIPE"} $(if $(value VERBOSE),--verbose)

# Four workers on two cores: a third of the time goes by in waiting for servers and for what was killed.
test:
	@$(SET_UP) test
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check --quiet .
	@$(VENV_PYTHON) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

ui:
	@$(SET_UP) ui
	@$(VENV_PYTHON) -m pipelines.ui.servers

# The site is in site/. Its search needs a server: python3 -m http.server --bind 127.0.0.1 --directory site
docs:
	@$(SET_UP) docs
	@$(VENV_PYTHON) -m pipelines.cli reference
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --quiet
	@echo "docs: site/index.html"

set-up:
	@$(SET_UP) test
