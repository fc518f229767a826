# Thin targets over the `syncbed` command. Settings go on the command line: make run SYNC=ddp MODEL=vgg11 STEPS=40
# They reach commands through the environment (see monitor/cli.py) and are never part of a shell line here, so values
# need no quoting beyond what the user's own shell asks for.

.DEFAULT_GOAL := help
COMMANDS := images data runs watch report export serve-stop rm check compare doctor clean logs show tensorboard prometheus-snapshot dashboards-check
TRAINING := run sweep reproduce serve
TARGETS := help $(TRAINING) test chaos soak cluster-up cluster-down cluster-status torch lint lock $(COMMANDS)
.PHONY: $(TARGETS)

# Names of this file's own, which a value from outside would turn into part of a command.
override OWN := OWN MAKE SHELL .SHELLFLAGS COMMANDS TRAINING TARGETS TORCH_FILES UV
$(foreach name,$(OWN),$(if $(filter command,$(origin $(name))),$(error $(name)= cannot be set: it is the Makefile's own)))
# A value stays as it was typed: make would expand the $ in it each time it is used or exported.
$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(eval override export $(name) := $$(value $(name)))))

STRAY := $(firstword $(filter-out $(TARGETS) .venv/%,$(MAKECMDGOALS)))
ifneq ($(STRAY),)
WOULD := settings are NAME=value, as in make run SYNC=ddp; make help lists the targets
ifneq ($(filter show,$(MAKECMDGOALS)),)
WOULD := make show RUN=$(STRAY) shows that run
endif
$(error $(STRAY): not a target; $(WOULD))
endif

export SYNCBED_GOALS := $(MAKECMDGOALS)
PYTHON ?= python3
export PYTHON
UV := .venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-21s%s\n", $$1, $$2}' Makefile
	@echo "  .venv/bin/syncbed run --help  lists every setting of a run"

run: ## train once: on the cluster if one is up, else as local processes (SYNC= MODEL= DATA= NODES= ...)
sweep: ## every combination of some settings (SYNC=ddp,ring NODES=1,2,4 REPEATS=3)
reproduce: ## a report's runs, tables and verdicts (REPORT=r1 SCALE=quick)
serve: ## a run's model behind HTTP: predictions, management, metrics (RUN=latest NAME=vgg PORT=8080)
$(TRAINING): .venv/.ready
	@if ! $(MAKE) --no-print-directory --question .venv/.torch; then \
	  where=$$(.venv/bin/syncbed where --from-make) || exit $$?; \
	  if [ "$$where" = local ]; then $(MAKE) --no-print-directory torch; fi; \
	fi
	@if [ "$$TENSORBOARD" = 1 ]; then $(MAKE) --no-print-directory .venv/.tensorboard; fi
	@.venv/bin/syncbed $@ --from-make

# Workers take whole files, whose tests share fixtures. Each has a cluster of its own for the tests on containers. Local
# tests come after those, for their ranks take the cores; no other test on containers runs while one restarts the engine.
test: .venv/.dev .venv/.torch ## unit and local tests, and the cluster tests where a Docker engine answers (PYTEST_ARGS=)
	@pytest=".venv/bin/python -m pytest -n logical --maxprocesses 3 --dist loadfile --no-loadscope-reorder"; \
	  if [ -n "$$PYTEST_ARGS" ]; then PYTEST_ADDOPTS="$$PYTEST_ADDOPTS $$PYTEST_ARGS" $$pytest; exit; fi; \
	  restart=tests/cluster/test_engine_restart.py; status=0; \
	  $$pytest tests/cluster tests/unit --ignore=$$restart || status=1; $$pytest $$restart tests/local || status=1; exit $$status

soak: .venv/.ready ## many short runs on the cluster: does anything grow? (RUNS=200 PROJECT=)
	@.venv/bin/python benchmarks/soak.py

chaos: .venv/.ready ## every fault on every strategy, on the cluster: writes docs/faults.md (PROJECT=)
	@.venv/bin/python benchmarks/chaos.py

cluster-up: .venv/.ready ## build what is missing and start the cluster (NODES= CPUS= MEMORY= CA_BUNDLE= ...)
	@.venv/bin/syncbed up --from-make

cluster-down: .venv/.ready ## stop the cluster and leave nothing
	@.venv/bin/syncbed down --from-make

cluster-status: .venv/.ready ## the nodes, their limits and the run on them
	@.venv/bin/syncbed status --from-make

tensorboard: .venv/.tensorboard
show: ## one run's summary (RUN=latest)
watch: ## the run that is on, live, in a browser (RUN=latest PORT=7007 PROJECT=)
tensorboard: ## show what runs with TENSORBOARD=1 wrote, on 127.0.0.1 (PORT=6006 RUNS_DIR=runs)
images: ## build or pull the cluster's images (BASE_IMAGE= WHEEL_INDEX= CA_BUNDLE=)
data: ## fetch, check and prepare a data set (DATA=cifar10 DATA_DIR= MODEL=)
runs: ## list the runs
report: ## write a run's report.html and report.md (RUN=latest)
export: ## a run's model as a folder to take away or to serve (RUN=latest)
serve-stop: ## stop serving (NAME=vgg: only that model)
prometheus-snapshot: ## keep a run's raw series before the cluster goes (RUN=latest)
rm: ## remove runs (RUN="id id")
check: ## say what is wrong with a received folder (RUN=folder)
compare: ## runs or a sweep side by side (RUNS="id id" or SWEEP=name, GOAL=0.8)
dashboards-check: ## ask every query of every dashboard, over a run's time (RUN=latest)
doctor: ## check this machine and say what would fix it
clean: ## remove what crashed runs left behind
logs: ## what the cluster's services printed
$(COMMANDS): .venv/.ready
	@.venv/bin/syncbed $@ --from-make

torch: .venv/.torch ## torch and MPI for local runs, the CPU build where its index answers (WHEEL_INDEX=)

lint: .venv/.dev .venv/.torch ## style, import contracts, types, shell scripts, Dockerfiles, workflows
	@.ci/lint

lock: .venv/.ready ## resolve the lock files again after a change of what is needed (UPGRADE=1: newest versions)
	@.venv/bin/python requirements/lock.py

# The stamp files make each step of the set-up happen once, and again when what it reads has changed. Whatever comes from a
# package index is held to the hashes of a lock file, the build tool of our own package too. Source archives are not taken:
# what builds them would be fetched without a hash and run.
.venv/.ready: pyproject.toml requirements/monitor.txt requirements/build.txt images/trainer/uv.txt
	@command -v -- "$$PYTHON" >/dev/null || \
	  { echo "syncbed: PYTHON=$$PYTHON: no such program; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "syncbed: PYTHON=$$PYTHON is no Python from 3.10 on; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@[ -w . ] || { echo "syncbed: this folder cannot be written, and .venv goes here" >&2; exit 2; }
	@echo "setting up .venv (once)"
	@"$$PYTHON" -m venv .venv || { echo "syncbed: no venv module; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@.venv/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r images/trainer/uv.txt
	@$(UV) --no-build --require-hashes -r requirements/monitor.txt
	@$(UV) --no-deps --build-constraints requirements/build.txt --editable .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.ready
	@echo "installing the test tools into .venv (once)"
	@$(UV) --no-build --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.tensorboard: requirements/tensorboard.txt .venv/.ready
	@echo "installing tensorboard into .venv (once)"
	@$(UV) --no-build --require-hashes -r requirements/tensorboard.txt
	@touch $@

TORCH_FILES := $(addprefix images/trainer/,install-torch.sh torch.txt torch-deps.txt torch-pypi.txt requirements.txt)
.venv/.torch: $(TORCH_FILES) .venv/.ready
	@case "$$WHEEL_INDEX" in ""|file://*) ;; \
	  *[@?\#]*) echo "syncbed: WHEEL_INDEX: an address with a user, password or query would stay in logs;" \
	    "give it without, and put the password into ~/.netrc" >&2; exit 2;; \
	  http://*|https://*) ;; \
	  *) echo "syncbed: WHEEL_INDEX=$$WHEEL_INDEX: the URL of a Python package index, as https://host/path" >&2; exit 2;; esac
	@echo "installing torch and MPI into .venv for local runs (once)"
	@sh images/trainer/install-torch.sh .venv/bin/python
	@set --; if [ -n "$$WHEEL_INDEX" ]; then set -- --index "$$WHEEL_INDEX" --index-strategy unsafe-first-match; fi; \
	  $(UV) "$$@" --no-build --require-hashes -r images/trainer/requirements.txt
	@touch $@
