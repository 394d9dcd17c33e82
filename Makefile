# Everything runs in .venv; nothing is installed outside this directory
# (except Debian's Chromium for browser tests, when it is missing and we may).

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

comma := ,
VENV := .venv
PYTHON := $(VENV)/bin/python
BASE_PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# Two tests at once suit the smallest machine we promise to run on.
JOBS ?= 2
PAGES := marketplace/web/static/web/build
# What generates a TypeScript client from the API's document, for the tests.
CLIENTS := frontend/clients/node_modules

# What the tests need comes with the rest when it will be needed anyway.
NEEDS_DEV := $(filter-out help installed setup pages demo run dist images clean,$(or $(MAKECMDGOALS),help))
USES := web,worker,sim,vendor,traces
# First all whose hashes are known, then what is left: PyTorch, whose files differ by device, and
# what another platform or Python needs beside.
INSTALL := set -o pipefail; $(PYTHON) -m pip install --progress-bar off --no-compile
LOCKED := $(INSTALL) --require-hashes --no-deps
LOCKS := $(patsubst %,--requirement docker/requirements/%.txt,build market node sim)
REST := $(INSTALL) --no-build-isolation --constraint constraints.txt --editable
# pip compiles one file after another; this uses every core. Some packages carry files that never compile.
# Half of the code of all packages is not imported here, or only when it is asked for.
NOT_COMPILED := /tests/|transformers/models/(?!auto|llama)|/(phonenumbers|matplotlib|fontTools|pip|pygments)/
COMPILE := $(PYTHON) -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib >/dev/null 2>&1 || true
# Installation takes minutes: say how far it is. Errors stand on the other stream, as pip writes them.
COUNTED := | awk '/^Collecting/ { if (++n % 20 == 0) print "  " n " packages found"; fflush() } \
  /^Downloading/ && /[0-9][0-9][0-9]\.?[0-9]* MB|GB/ { print "  " $$0; fflush() } \
  /^Installing collected/ { print "  unpacking"; fflush() }'

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help installed setup setup-dev pages demo run test compiled test-python test-faults test-attacks test-browser test-nightly test-nightly-slice test-interop test-pages browser lint format types contracts lock \
  bench bench-auction bench-preparation bench-training bench-tiers bench-lane screens clean

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | sort | awk -F'|' '{printf "  %-16s %s\n", $$1, $$2}'

installed: $(VENV)/.installed pages dist/constraints.txt

setup: installed ## Environment and pages, ready to run
	@echo "Compiling the auction (kept: later starts skip it)"
	@$(PYTHON) -m marketplace.config.warm

setup-dev: $(VENV)/.installed-dev pages $(CLIENTS)/.package-lock.json ## The same with everything the tests need

$(PYTHON):
	@test -n "$(BASE_PYTHON)" || { echo "Finetender needs Python 3.11 or newer on PATH."; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@$(BASE_PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Could not make a virtual environment. On Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard docker/requirements/*.txt) | $(PYTHON)
	@echo "Installing packages (about $$(wc -l < constraints.txt), 1 GB; a few minutes)"
	@$(LOCKED) $(LOCKS) $(if $(NEEDS_DEV),--requirement docker/requirements/dev.txt) $(COUNTED)
	@$(REST) '.[$(USES)$(if $(NEEDS_DEV),$(comma)dev)]' $(COUNTED)
	@$(COMPILE)
	@touch $@ && sleep 0.1 $(if $(NEEDS_DEV),&& touch $(VENV)/.installed-dev)

$(VENV)/.installed-dev: $(VENV)/.installed
	@test $@ -nt $< || { echo "Installing what the tests need" && \
	  $(LOCKED) --requirement docker/requirements/dev.txt $(COUNTED) && $(REST) '.[$(USES),dev]' $(COUNTED); }
	@touch $@

.PHONY: images
images: ## Build both images and start each once, where Docker is there
	@docker info >/dev/null 2>&1 || { echo "No Docker engine answers here: the images were not built."; exit 1; }
	docker build --file docker/worker.Dockerfile --tag finetender-node .
	docker build --file docker/web.Dockerfile --tag finetender-web .
	docker run --rm finetender-node --help >/dev/null
	docker run --rm finetender-web python -c "import marketplace.config.web_server"

.PHONY: test-containers
test-containers: setup-dev ## Build both images, sell a job, restart each service, put a backup back (STAND_INS=1: no registry is there)
	@docker info >/dev/null 2>&1 || { echo "No Docker engine answers here: the containers were not run."; exit 1; }
	$(if $(STAND_INS),mkdir -p .data/stand-ins && tests/containers/stand_ins.sh .data/stand-ins)
	STAND_INS=$(STAND_INS) $(PYTHON) -m pytest -s tests/containers

.PHONY: dist
dist: dist/constraints.txt dist/sbom.json ## What providers install, and a CycloneDX list of all packages

dist/sbom.json: constraints.txt pyproject.toml | $(VENV)/.installed-dev
	@mkdir -p dist
	@$(VENV)/bin/cyclonedx-py environment $(PYTHON) --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file $@

.PHONY: audit
audit: setup-dev ## Look the packages up in an index of advisories, where one answers
	@$(PYTHON) .ci/audit.py

dist/constraints.txt: constraints.txt docker/requirements/build.txt docker/requirements/node.txt docker/node_dist.sh docker/worker.Dockerfile $(shell git ls-files workers 2>/dev/null) | $(VENV)/.installed
	@echo "Building the node's package"
	@PYTHON=$(PYTHON) docker/node_dist.sh

pages: $(PAGES)/.built ## Build the pages' scripts and styles

$(PAGES)/.built: $(shell find frontend/web -type f -not -path '*/node_modules/*' 2>/dev/null) | $(VENV)/.installed
	@command -v npm >/dev/null || $(PYTHON) -m pip install --quiet --require-hashes --no-deps --requirement docker/requirements/pages.txt
	@echo "Building the pages"
	@cd frontend/web && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build
	@touch $@

$(CLIENTS)/.package-lock.json: frontend/clients/package-lock.json | $(PAGES)/.built
	@cd frontend/clients && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json

# The demo's clock starts with make, so that what it prints includes the installation.
STARTED_AT := $(shell date +%s)

demo: installed ## Sell and run one real job, then leave the site up (ONCE=1: stop when it is done; DATA=messy: a vendor prepares the data)
	@STARTED_AT=$(STARTED_AT) $(PYTHON) -m marketplace.embedded demo $(if $(ONCE),--once) $(if $(DATA),--data $(DATA))

run: installed ## The whole house without the demo sale
	@$(PYTHON) -m marketplace.embedded up

# With STRIPE_TEST_KEY=sk_test_... what the gateway answers is asked of Stripe itself.
test: ## Everything that must hold
	@$(MAKE) --no-print-directory --jobs 2 types compiled lint contracts test-pages
	@$(MAKE) --no-print-directory test-python

# Running houses mostly wait, so the rest is tested at the same time, and gives way to them: their
# nodes measure how fast they are. Each of the three needs a process of its own: Playwright leaves an
# event loop running in which Django does not query.
TOGETHER := --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
WITHOUT_HOUSES := --ignore=tests/faults --ignore=tests/browser --ignore=tests/containers
test-python: setup-dev browser
	@$(MAKE) --no-print-directory $(TOGETHER) test-faults test-browser & houses=$$!; \
	nice $(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m "not nightly" $(WITHOUT_HOUSES); rest=$$?; \
	wait $$houses && exit $$rest

test-faults: setup-dev ## Processes of a running house are killed
	$(PYTHON) -m pytest -m "not nightly" tests/faults

test-attacks: setup-dev ## What outsiders tried on a running house is refused; the long ones too
	HYPOTHESIS_PROFILE=new $(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m attacks $(WITHOUT_HOUSES)

test-browser: setup-dev browser ## Pages of a running house, in Chromium
	$(PYTHON) -m pytest -m "not nightly" tests/browser

compiled: setup-dev # Machine code that many tests need, once for all processes
	@$(PYTHON) -m marketplace.config.warm
	@$(PYTHON) -m scheduler simulate tiers --trace burst --jobs 5 --json >/dev/null
	@$(PYTHON) -m scheduler auction replay tests/data/auction/seq_00.json --policy residual >/dev/null

test-nightly: setup-dev ## Longer variants, and properties on examples not tried before
	HYPOTHESIS_PROFILE=new $(PYTHON) -m pytest -n $(JOBS) --dist worksteal $(WITHOUT_HOUSES)
	$(PYTHON) -m pytest tests/faults
	$(PYTHON) -m pytest tests/browser
	@! docker info >/dev/null 2>&1 || $(MAKE) --no-print-directory test-containers
	@$(MAKE) --no-print-directory audit

test-nightly-slice: setup-dev ## The shortest of the longer variants, with new examples
	HYPOTHESIS_PROFILE=new $(PYTHON) -m pytest -m nightly tests/properties/test_auction_truthfulness.py

test-interop: setup-dev ## LangChain, instructor, LiteLLM, MLflow, llama.cpp and vLLM, installed for it
	$(PYTHON) -m pytest -s -m nightly tests/unit/marketplace/api/openai/test_interop.py \
	  tests/unit/marketplace/tracking/test_mlflow.py tests/unit/workers/exporting/test_llama_cpp.py \
	  tests/unit/marketplace/api/test_vllm.py

test-pages: setup-dev
	cd frontend/web && npm run --silent check && npm test --silent

browser: | $(VENV)/.installed-dev
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else echo "Browser tests need Chromium: sudo apt-get install chromium (or set CHROMIUM to its path)."; exit 1; fi; }

lint: setup-dev ## Style
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	@awk 'length > 100 { print FILENAME ":" FNR ": a template line longer than 100 columns"; long = 1 } \
	  END { exit long }' $$(find marketplace -name '*.html')

format: setup-dev ## Rewrite to the house's style
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types: setup-dev ## Static types
	$(PYTHON) -m pyright

contracts: setup-dev ## Who may import whom
	$(VENV)/bin/lint-imports

lock: $(VENV)/.installed-dev ## Write constraints.txt from what is installed, and docker/requirements/ with hashes
	$(PYTHON) -m pip freeze --exclude-editable | sed -E 's/\+cpu$$//' | grep -vE ' @ |^(pip|setuptools|wheel)==' > constraints.txt
	@$(PYTHON) .ci/lock.py

.PHONY: digests
digests: ## Pin the images of docker/ to what their tags name now, where Docker is there
	python3 docker/digests.py

bench: bench-api bench-auction bench-books bench-house bench-lane bench-ledger bench-merging bench-preparation bench-prompts bench-tiers bench-training bench-work ## All benchmarks, one JSON line per case

bench-auction: setup-dev
	@$(PYTHON) -m tests.benchmarks.bench_auction
	@$(PYTHON) -m tests.benchmarks.bench_auction_day

bench-lane: setup-dev
	@$(PYTHON) -m tests.benchmarks.bench_lane
	@$(PYTHON) -m tests.benchmarks.bench_bids
	@$(PYTHON) -m tests.benchmarks.bench_log

.PHONY: bench-api
bench-api: setup-dev ## Quotes, lists, an upload and models' answers over HTTP
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_api

.PHONY: bench-ledger
bench-ledger: setup-dev ## Hold, charge and release beside a single-table update of a balance
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_ledger

.PHONY: stripe-cassettes
stripe-cassettes: setup-dev ## Record what Stripe's test mode answers to our calls (STRIPE_TEST_KEY=sk_test_...)
	STRIPE_RECORD=1 $(PYTHON) -m pytest tests/unit/marketplace/payments/test_stripe_cassettes.py -k as_recorded

.PHONY: bench-books
bench-books: setup-dev ## The operator's page of money at 1,000, 10,000 and 100,000 bids
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_books

.PHONY: bench-merging
bench-merging: setup-dev ## One decision on 240 GPUs, and 10,000 simulated jobs
	@$(PYTHON) -m tests.benchmarks.bench_merging

bench-preparation: setup-dev ## Train messy data with and without preparation, for the same work; growth with the rows; twelve kinds of mess
	@$(PYTHON) -m tests.benchmarks.bench_preparation
	@$(PYTHON) -m tests.preparation_quality.mess

bench-prompts: setup-dev ## Rounds of the lane, admission over HTTP beside bids, lookups and gangs on a node
	@$(PYTHON) -m tests.benchmarks.bench_prompts
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_express
	@$(PYTHON) -W ignore -m workers.bench prompts

bench-training: setup-dev
	@$(PYTHON) -m tests.benchmarks.bench_training

.PHONY: bench-house
bench-house: setup-dev ## A house at rest; ticks and pages of 100 zones and 10,000 nodes; 1,000 nodes that wait
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_idle
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_large_house
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_nodes

.PHONY: bench-work
bench-work: setup-dev ## Predicted against measured step time over ten length distributions
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_work

bench-tiers: setup-dev
	@$(PYTHON) -m tests.benchmarks.bench_tiers
	@$(PYTHON) -m tests.benchmarks.bench_tiers_live
	@$(PYTHON) -m tests.benchmarks.bench_move

.PHONY: bench-pages
bench-pages: setup-dev browser ## Bytes and requests of an open tab, seen and hidden
	@$(PYTHON) -W ignore -m tests.benchmarks.bench_pages

screens: setup-dev browser ## Take the pictures under docs/screens
	@$(PYTHON) -m tests.browser.screens

clean: ## Remove the environment, builds and the demo's data
	rm -rf $(VENV) $(PAGES) .data build dist *.egg-info frontend/web/node_modules .pytest_cache .ruff_cache .hypothesis
