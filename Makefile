# Octavo's commands. Each target sets up what it needs; what is slow to build is cached outside the checkout.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(OCTAVO_CACHE),$(HOME)/.cache/octavo)
export OCTAVO_CACHE := $(CACHE)
UV := $(CACHE)/tools/bin/uv
BIN := .venv/bin
PYTEST := $(BIN)/pytest
PYTHON_SOURCES := engine operator hack tests benchmarks
COMPILE := $(UV) pip compile -q pyproject.toml
PINNED := --generate-hashes --no-emit-index-url --python-version 3.11

.PHONY: help demo demo-down test test-fast test-engine test-cluster soak check generate requirements bench bench-cpu bench-why bench-profile bench-quantized bench-rag bench-autoscaling venv cluster cluster-down

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: venv ## Run the main job: cluster, operator, a real model, a streamed answer, metrics, scaling under load
	@PYTHONPATH=hack $(BIN)/python -m demo

demo-down: venv ## Remove what the demo made, and the cluster
	@PYTHONPATH=hack $(BIN)/python -m demo down

test: venv ## Run all tests, on the real cluster, too: stages side by side, and where the time went
	hack/cluster build helm s3
	hack/promtool --version >/dev/null
	hack/browser --version >/dev/null
	hack/clients >/dev/null
	hack/tests pure node engine cluster heavy alone

test-fast: venv ## Run the tests that need neither torch nor a cluster (half a minute)
	hack/cluster build helm
	hack/promtool --version >/dev/null
	hack/tests pure

test-engine: venv ## Run the engine's tests, with torch on the CPU, and other people's clients
	hack/cluster build s3
	hack/browser --version >/dev/null
	hack/clients >/dev/null
	hack/tests engine

test-cluster: venv ## Run the tests on the embedded node
	hack/tests node cluster heavy alone

soak: venv ## Run the long forms of the tests on the embedded node (an hour or more)
	hack/with-cluster $(PYTEST) -m soak --timeout 3600 tests

check: venv ## Check format, lint, types, import contracts and generated files
	@hack/check

generate: venv ## Write the CRDs, the dashboards and the rules from code
	@hack/generate

requirements: $(UV) ## Resolve the pinned requirements again
	$(COMPILE) --extra engine --extra operator --extra plugin --group dev $(PINNED) -o requirements/dev.txt
	$(COMPILE) --extra engine --extra otel $(PINNED) -c requirements/dev.txt -o requirements/engine.txt
	PYTHONPATH=hack python3 -m image_layers
	$(COMPILE) --extra operator $(PINNED) -c requirements/dev.txt -o requirements/operator.txt
	$(COMPILE) --group clients $(PINNED) -o requirements/clients.txt
	$(COMPILE) --group templates --no-deps $(PINNED) -o requirements/templates.txt

bench: venv ## Compare with transformers on this machine, side by side
	$(BIN)/python benchmarks/side_by_side.py

bench-cpu: venv ## Compare with llama.cpp in few bits, then with vLLM under its own load client, on this machine's processors (20 minutes; goes on where it stopped)
	PYTHONPATH=engine:benchmarks:benchmarks/cpu $(BIN)/python benchmarks/quantized_decode.py
	PYTHONPATH=engine:benchmarks:benchmarks/cpu $(BIN)/python -m cpu_figures $(ARGS)

bench-why: venv ## Measure why blocks and continuous batching: one pool, used in three ways; writes docs/WHY_PAGING.md's table and picture
	PYTHONPATH=engine:benchmarks:benchmarks/cpu $(BIN)/python -m why_paging \
		--document docs/WHY_PAGING.md --picture docs/why_paging.svg $(ARGS)

bench-profile: venv ## Profile a decode step, one stream and 32; writes the table of docs/PERFORMANCE.md
	PYTHONPATH=engine:benchmarks:benchmarks/cpu $(BIN)/python benchmarks/cpu/step_profile.py --document docs/PERFORMANCE.md $(ARGS)

bench-quantized: venv ## Compare one stream from a 4-bit GGUF file with the same in bfloat16 and with llama.cpp, side by side
	PYTHONPATH=engine:benchmarks:benchmarks/cpu $(BIN)/python benchmarks/quantized_decode.py $(ARGS)

bench-rag: venv ## Measure the RAG case, prefix caching and chunked prefill on and off; writes the figures of docs/guides/rag.md (12 minutes)
	PYTHONPATH=engine:hack:benchmarks:benchmarks/cpu $(BIN)/python -m rag_case --picture docs/guides/rag.svg \
		--document docs/guides/rag.md --document docs/guides/rag.ja.md $(ARGS)

bench-autoscaling: venv ## Compare scaling policies in virtual time; writes the table and picture of docs/AUTOSCALING.md
	PYTHONPATH=operator:benchmarks/autoscaling $(BIN)/python -m serving_simulation \
		--document docs/AUTOSCALING.md --picture docs/autoscaling.svg

cluster: venv ## Start the embedded Kubernetes node
	hack/cluster up

cluster-down: ## Stop the embedded Kubernetes node
	hack/cluster down

venv: .venv/.ready

.venv/.ready: requirements/dev.txt pyproject.toml hack/venv
	@hack/venv

$(UV):
	@hack/venv --tools
