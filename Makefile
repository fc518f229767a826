# Thin targets over the `syncbed` command. Settings go on the command line: make run SYNC=ddp MODEL=vgg11 STEPS=40
# They reach syncbed through the environment (see monitor/cli.py), so values need no quoting for a shell.

PYTHON ?= python3
VENV := .venv
SYNCBED := $(VENV)/bin/syncbed
UV := $(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(VENV)/bin/python
UV_VERSION := 0.13.9
COMMANDS := images data runs doctor clean logs

.DEFAULT_GOAL := help
.PHONY: help run test tensorboard cluster-up cluster-down cluster-status show torch lint $(COMMANDS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s%s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  $(SYNCBED) run --help  lists every setting of a run"

run: $(VENV)/.ready ## train once: on the cluster if one is up, else as local processes (SYNC= MODEL= DATA= NODES= ...)
	@if ! $(MAKE) --no-print-directory --question $(VENV)/.torch; then \
	  where=$$($(SYNCBED) where --from-make) || exit $$?; \
	  if [ "$$where" = local ]; then $(MAKE) --no-print-directory torch; fi; \
	fi
	@if [ "$(TENSORBOARD)" = 1 ]; then $(MAKE) --no-print-directory $(VENV)/.tensorboard; fi
	@$(SYNCBED) run --from-make

test: $(VENV)/.dev $(VENV)/.torch ## unit and local tests, and the cluster tests where a Docker engine answers
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

cluster-up: $(VENV)/.ready ## build what is missing and start the cluster (NODES= CPUS= MEMORY= CA_BUNDLE= ...)
	@$(SYNCBED) up --from-make

cluster-down: $(VENV)/.ready ## stop the cluster and leave nothing
	@$(SYNCBED) down --from-make

cluster-status: $(VENV)/.ready ## the nodes, their limits and the run on them
	@$(SYNCBED) status --from-make

show: $(VENV)/.ready ## one run's summary (RUN=latest)
	@$(SYNCBED) show $(or $(RUN),latest) --from-make

tensorboard: $(VENV)/.tensorboard ## show what runs with TENSORBOARD=1 wrote, on 127.0.0.1 (PORT=6006 RUNS_DIR=runs)
	@$(VENV)/bin/tensorboard --logdir "$(or $(RUNS_DIR),runs)" --host 127.0.0.1 --port $(or $(PORT),6006)

images: ## build or pull the cluster's images (BASE_IMAGE= WHEEL_INDEX= CA_BUNDLE=)
data: ## fetch, check and prepare a data set (DATA=cifar10 DATA_DIR= MODEL=)
runs: ## list the runs
doctor: ## check this machine and say what would fix it
clean: ## remove what crashed runs left behind
logs: ## what the cluster's services printed
$(COMMANDS): $(VENV)/.ready
	@$(SYNCBED) $@ --from-make

torch: $(VENV)/.torch ## torch and MPI for local runs, the CPU build where its index answers (WHEEL_INDEX=)

lint: $(VENV)/.dev ## ruff
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

# The stamp files make each step of the set-up happen once, and again when what it reads has changed.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "syncbed: $(PYTHON) is older than 3.10; name a newer one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@[ -w . ] || { echo "syncbed: this folder cannot be written, and $(VENV) goes here" >&2; exit 2; }
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV) || { echo "syncbed: no venv module; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@echo "installing the test tools into $(VENV) (once)"
	@$(UV) --editable '.[dev]'
	@touch $@

$(VENV)/.tensorboard: images/trainer/requirements.txt $(VENV)/.ready
	@echo "installing tensorboard into $(VENV) (once)"
	@$(UV) --editable '.[tensorboard]'
	@touch $@

$(VENV)/.torch: images/trainer/torch.txt images/trainer/requirements.txt $(VENV)/.ready
	@echo "installing torch and MPI into $(VENV) for local runs (once)"
	@sh images/trainer/install-torch.sh $(VENV)/bin/python
	@$(UV) $(if $(WHEEL_INDEX),--index $(WHEEL_INDEX) --index-strategy unsafe-first-match) -r images/trainer/requirements.txt
	@touch $@
