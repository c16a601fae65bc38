# The two commands: `make test-pp WORLD=4` (the main job) and `make test` (everything).
# `make help` lists the rest.

# Hosts that torchrun starts; every topology with pp*tp*cp <= WORLD runs on them.
WORLD ?= 4
# Keep only the topologies with these sizes; if a case lists none such, use exactly these.
PP ?=
TP ?=
CP ?=
# Run every case with this subject instead of its own.
SUBJECT ?=
BACKEND ?=
DEVICE ?=
AGREE_ON ?=
# pytest-xdist workers, each with a fleet of its own.
JOBS ?= 1
# A pytest -k expression.
K ?=
# HOST:PORT at which hosts of other machines are awaited, how many machines, and the file that leads
# them there (docs/nodes.md).
LISTEN ?=
NODES ?=
FLEET_FILE ?=
PYTHON ?= python3
# Empty: use $(PYTHON) as it is and install nothing.
VENV ?= .venv

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
READY := has-packages
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

option = $(if $(strip $(2)),$(1) $(strip $(2)))
FAR_OPTIONS = $(call option,--listen,$(LISTEN)) $(call option,--nodes,$(NODES)) \
	$(call option,--fleet-file,$(FLEET_FILE))
FLEET_OPTIONS = --world $(WORLD) $(call option,--pp,$(PP)) $(call option,--tp,$(TP)) \
	$(call option,--cp,$(CP)) $(call option,--subject,$(SUBJECT)) \
	$(call option,--backend,$(BACKEND)) $(call option,--device,$(DEVICE)) \
	$(call option,--agree-on,$(AGREE_ON)) \
	$(FAR_OPTIONS) $(if $(strip $(K)),-k '$(K)') $(if $(filter-out 1,$(JOBS)),-n $(JOBS))

# Empty where nobody gave one: then NCCL has as many ranks as there are GPUs.
GIVEN_WORLD = $(if $(filter file,$(origin WORLD)),,$(WORLD))

# Packages of their own, for test-peers only.
PEERS = .peers

# A session of its own, so that `latest` of the main job stays what it was.
BUGS_OUT = reports/out/bugs

.DEFAULT_GOAL := help
.PHONY: help setup test-pp test-bugs test-peers soak soak-faults matrix test lint bench-pp \
	bench-harness clean has-packages test-nccl nightly gpu-check

help: ## this list
	@echo "make TARGET [VARIABLE=value ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  WORLD=$(WORLD)         hosts of the fleet: topologies with pp*tp*cp up to this run"
	@echo "  PP= TP= CP=     keep only the topologies with these sizes, or run exactly these"
	@echo "  SUBJECT=        run every case with this subject (python -m testbed list subjects)"
	@echo "  BACKEND=        gloo or nccl instead of what the scenarios say"
	@echo "  DEVICE=         cpu or cuda instead of what the scenarios say"
	@echo "  AGREE_ON=       gloo or nccl instead of what the scenarios say"
	@echo "  JOBS=$(JOBS)          pytest-xdist workers, each with a fleet of its own"
	@echo "  LISTEN= NODES= FLEET_FILE=  hosts are started on other machines (docs/nodes.md)"
	@echo "  K=              pytest -k expression, such as K='skew and pp2tp2'"
	@echo "  PYTHON=$(PYTHON)  interpreter the virtual environment is made with"
	@echo "  VENV=$(VENV)      folder of the virtual environment; empty: use PYTHON as it is"

setup: $(READY) ## make the virtual environment and install the pinned requirements

test-pp: $(READY) ## the main job: the cases of cases/ on real ranks, but for those of its folders
	$(PY) -m pytest $(wildcard cases/test_*.py) -rs $(strip $(FLEET_OPTIONS))

test-bugs: $(READY) ## every planted bug under its scenarios: the table of what the oracles catch
	@rm -f $(BUGS_OUT)/latest
	@$(PY) -m pytest -q cases/bugs --world $(WORLD) --runs-out $(BUGS_OUT) \
		$(if $(filter-out 1,$(JOBS)),-n $(JOBS)); \
	tests=$$?; $(PY) -m testbed.measure.sensitivity $(BUGS_OUT)/latest && exit $$tests

test-peers: $(READY) $(PEERS)/.ready ## programs that nobody here wrote, sound and broken: is each named right
	PYTHONPATH=$(PEERS) $(PY) -m cases.peers $(if $(strip $(K)),'$(K)')

matrix: $(READY) ## every cached SGLang release under the scenarios with a published report
	$(PY) -m testbed matrix --world $(WORLD) $(call option,--subjects,$(SUBJECT)) \
		--json reports/out/matrix.json --html reports/out/matrix.html

soak: $(READY) ## 1,000 random sound scenarios, in which nothing may be found
	$(PY) -m testbed.measure.soak --world $(WORLD) $(call option,--subject,$(SUBJECT))

soak-faults: $(READY) ## process faults on one fleet, attacks on whole commands: verdicts, what is left
	$(PY) -m testbed.measure.soak_faults --world $(WORLD)

test-nccl: $(READY) ## the cases over NCCL, a GPU per rank; skipped where there is no GPU
	$(PY) -m testbed.measure.nccl_suite $(call option,--world,$(GIVEN_WORLD)) $(if $(strip $(K)),-k '$(K)')

nightly: $(READY) ## test-nccl, test-bugs, matrix and bench-pp, one summary at the end
	$(PY) -m testbed.measure.nightly

gpu-check: $(READY) ## what a machine with a GPU has to show: reports/out/gpu-check.md
	$(PY) -m testbed.measure.gpu_check

test: lint ## everything: lint, the unit tests of tests/, and the cases
	$(PY) -m pytest tests cases -rs $(strip $(FLEET_OPTIONS))

lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench-pp: $(READY) ## what an agreement costs, per protocol, against its bare operations
	$(PY) -m testbed bench --world $(WORLD) $(call option,--subjects,$(SUBJECT)) \
		$(call option,--backend,$(BACKEND)) $(FAR_OPTIONS) $(if $(strip $(PP)$(TP)$(CP)),--topology \
		pp$(or $(strip $(PP)),1)tp$(or $(strip $(TP)),1)$(if $(strip $(CP)),cp$(strip $(CP))))

bench-harness: $(READY) ## what a case costs here and in other harnesses, sound and faulty
	$(PY) -m testbed.measure.harness --world $(WORLD)

clean: ## remove caches and the kept runs (the virtual environment stays)
	rm -rf reports/out .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

ifneq ($(strip $(VENV)),)
# Done only when the last line ran: an installation that broke off is taken up again.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
		"make: $(PYTHON) is Python %d.%d: 3.10 or newer is needed, give PYTHON=..." \
		% sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@echo "installing requirements.txt into $(VENV); torch is large, this happens once"
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@
endif

# Offline, or where one cannot be had: what needs it is skipped, and says so.
$(PEERS)/.ready: requirements-peers.txt
	@mkdir -p $(PEERS)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(PEERS) -r $< && touch $@ || echo "requirements-peers.txt: not installed"

has-packages:
	@$(PYTHON) -c 'import importlib.util as u, sys; \
		needed = ("jinja2", "msgspec", "pytest", "rich", "tabulate", "torch"); \
		lacking = [n for n in needed if not u.find_spec(n)]; \
		sys.exit(lacking and "make: $(PYTHON) lacks " + ", ".join(lacking) \
		+ ": install them, or leave VENV= out" or 0)'
