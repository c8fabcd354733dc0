# Everything runs in .venv, made on first use and renewed when pyproject.toml or constraints.txt
# changes: `make lab` installs what a learner needs, `make test` what a developer needs as well.
# `make lab VENV_ARGS=--system-site-packages` uses this machine's own torch where it has one.

PYTHON    ?= python3
VENV      ?= .venv
VENV_ARGS ?= $(shell cat $(VENV)/venv-args 2>/dev/null)
RUN       := $(VENV)/bin/python -m
STAMP     := $(subst $(eval) ,,$(VENV_ARGS))
MADE      := $(VENV)/made$(STAMP)
LEARNER   := $(VENV)/learner$(STAMP)
DEVELOPER := $(VENV)/developer$(STAMP)
UNUSED    := torch/test torch/bin/test_* torch/bin/protoc*
LAZY      := $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)

.PHONY: help lab pages site types javascript fast slow browser full test test-slow test-all bench clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

lab: $(LEARNER)  ## open JupyterLab on a lesson: make lab LESSON=1 LAB_ARGS="--port 8890"
	$(VENV)/bin/mplab lab $(LESSON) $(LAB_ARGS)

pages: $(LEARNER)  ## run the lessons and write them as pages to mplab-html
	$(RUN) pip install --constraint $(VENV)/constraints.txt --editable '.[docs]'
	$(VENV)/bin/mplab export-html

site: pages  ## the same, and serve them on http://127.0.0.1:8000
	$(RUN) http.server --bind 127.0.0.1 --directory mplab-html 8000

test: $(DEVELOPER)  ## lint, format, types and the fast tests (about three minutes)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(MAKE) --no-print-directory --jobs 2 types javascript fast

types fast: $(DEVELOPER)
types:
	$(RUN) mypy
javascript:  # lint and format, where there is Node; its tests are skipped too where there is none
	if command -v npx; then npx --yes @biomejs/biome@2.6.8 ci; else echo 'no Node'; fi
PYTEST = $(RUN) pytest --numprocesses 2 --junit-xml artefacts/$@.xml
fast:
	$(PYTEST) --dist loadfile -m "not (slow or browser or full)"
slow: $(DEVELOPER)
	$(PYTEST) --dist worksteal -m "slow and not (browser or full)" $(SLOW_ARGS)
browser: $(DEVELOPER)
	$(PYTEST) --dist loadfile -m "browser and not full"
full: $(DEVELOPER)
	$(PYTEST) --dist worksteal -o faulthandler_timeout=7200 -m full

test-slow: slow browser  ## the slow tests, the lessons and the browser (about a quarter of an hour)

test-all: test slow browser full  ## everything; artefacts/test-all.txt says what ran, and where
	$(VENV)/bin/python tests/tools/summary.py $(patsubst %,artefacts/%.xml,fast slow browser full)

bench: $(DEVELOPER)  ## measure rounding against its peers: make bench BENCH_ARGS="--help"
	$(VENV)/bin/python tests/tools/bench.py $(BENCH_ARGS)

clean:  ## remove .venv, builds and caches (not mplab-lessons, which is your work)
	rm -rf $(VENV) build dist artefacts .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find mplab tests data lessons -name __pycache__ -prune -exec rm -rf {} +

# The stamps' names hold VENV_ARGS: another choice builds the environment anew, none keeps the last.
# With --system-site-packages the machine's torch stays, so its version is no longer constrained.
# For a learner pip compiles nothing: Python does, what is imported, unless that was forbidden. And
# what torch was built and tested with goes, a tenth of all. What first calls need is compiled now.
$(MADE):
	$(PYTHON) -m venv --clear $(VENV_ARGS) $(VENV)
	echo '$(VENV_ARGS)' > $(VENV)/venv-args
	touch $@

define install
	if [ -n '$(findstring system-site,$(VENV_ARGS))' ] && $(VENV)/bin/python -c 'import torch'; \
	  then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	$(RUN) pip install --constraint $(VENV)/constraints.txt $(1)
	$(3)
	touch $(2)
endef

$(LEARNER): pyproject.toml constraints.txt | $(MADE)
	$(call install,$(LAZY) --editable '.[lab]',$@,rm -rf $(UNUSED:%=$(VENV)/lib/python3*/site-packages/%))
	-nice $(RUN) mplab.arithmetic.first_calls

$(DEVELOPER): pyproject.toml constraints.txt | $(MADE)
	$(call install,--editable '.[test]',$@ $(LEARNER),$(VENV)/bin/python tests/tools/compile_loops.py)
