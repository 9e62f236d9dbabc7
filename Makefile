# Two commands matter: `make compare` and `make test`. Both make .venv first, with pinned versions.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# An extra package index for torch's CPU wheels (README). Without it, Linux takes the CUDA build of about 3 GB,
# unless pip finds a local CPU build of the pinned version.
TORCH_INDEX ?=
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
BUDGET ?= 12m

.PHONY: compare test demo lint unit install install-dev host test-matrix test-ops test-long test-between test-third-party test-third-party-optimizers test-third-party-models museum coverage results clean

compare: install
	$(BIN)/detente compare gpt2 --budget $(BUDGET) --html report.html

test: install-dev lint unit

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

host:
	@sh scripts/check-host.sh $(PYTHON)

$(VENV)/.installed: requirements/stacks.txt pyproject.toml
	@sh scripts/check-host.sh $(PYTHON)
	@echo "making $(VENV): the default stacks and the judging packages, about 2 GB with a CPU build of torch"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' requirements/stacks.txt)
	$(PIP) -r requirements/stacks.txt
	$(PIP) --no-deps -e .
	-@$(BIN)/detente bridge prepare 2>/dev/null
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt requirements/examples.txt
	$(PIP) -r requirements/dev.txt
	$(PIP) --no-deps -r requirements/examples.txt
	@touch $@

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# Two at a time, a file each; no test asserts on time. One thread each, or the frameworks' pools fight for the cores.
unit:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=40

# The long matrix: every workload, contract and precision on every stack that is here.
test-matrix: install-dev
	$(BIN)/python -m pytest -m matrix

# Every OpInfo sample of every operator that the bridge lowers, and every module of torch.nn.
test-ops: install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m ops tests/conformance/ops

# The rest of the lists of which `make test` runs a part: semantics, edges, derivatives, values of operators.
test-long: install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m long

# What changes something between the bridge's steps, each loop beside eager PyTorch; then the fuzzer, for MINUTES.
# Writes docs/results/bridge-between.md.
MINUTES ?= 60
test-between: install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist load --no-loadscope-reorder -m "between or not between" tests/bridge/between
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.bridge.between --minutes $(MINUTES)

# Every public optimizer of four packages, and models of over eighty, through the bridge beside eager, in an environment
# of their own. Interrupt it at will, the next call goes on. Writes docs/results/third-party-{optimizers,models}.md.
THIRD := .venv-third/bin/python
.venv-third/.installed: requirements/third-party.txt requirements/stacks.txt
	test -x $(THIRD) || $(PYTHON) -m venv .venv-third
	$(THIRD) -m pip --disable-pip-version-check install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==$$(sed -n 's/^torch==//p' requirements/stacks.txt)
	$(THIRD) -m pip --disable-pip-version-check install --quiet -r requirements/stacks.txt -r requirements/dev.txt
	$(THIRD) -m pip --disable-pip-version-check install --quiet --no-deps -r requirements/third-party.txt
	@touch $@

test-third-party: test-third-party-optimizers test-third-party-models

test-third-party-optimizers: .venv-third/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(THIRD) -m tests.third_party.optimizers

test-third-party-models: .venv-third/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=src:.:tests/conformance/models $(THIRD) -m tests.third_party.models

# The museum: every planted pitfall must be caught and no fair row void, quiet and beside a neighbour that computes.
# Writes docs/results/museum.md.
museum: install-dev
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.museum

# The bridge on every architecture of transformers' auto mappings, each in its own process; interrupt it at will,
# the next call goes on. Writes docs/results/bridge-coverage.md.
coverage: install-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests/conformance/models $(BIN)/python -m zoo

# A stored session's report, with no framework installed: only what tells.
demo:
	test -x .venv-demo/bin/python || $(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip --disable-pip-version-check install --quiet -e '.[judge]'
	.venv-demo/bin/detente report docs/results/demo/session.jsonl --html report.html --open

# README's session and the pages of the stored ones, made from them again: nothing is measured.
results: install
	$(BIN)/python benchmarks/readme_session.py

clean:
	rm -rf $(VENV) .venv-demo report.html
