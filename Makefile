# The one list of commands that people, hooks and CI share. `make help` prints it.
PYTHON ?= python3
NODES ?= 200
export PYTHONPATH := $(CURDIR)
export PYTHONDONTWRITEBYTECODE := 1

# The interpreter with all dependencies: made at first use, kept outside the checkout.
PY = $$($(PYTHON) -m testbed.environment || echo false)

.PHONY: aws help demo test check unit system disrupt crds base lock fmt up down status race bench upstream trace faults audit pythons clone image
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: ## the whole story on this machine: cluster up, pods in, nodes ready, destroy, nothing left
	@py=$(PY); exec $$py -m testbed demo

test: check ## lint, types, layers, then every test
	@py=$(PY); exec $$py -m pytest -n 2 --dist loadgroup

check: ## lint, types and layers only
	@py=$(PY); bin=$$(dirname $$py); \
	$$bin/ruff check . && $$bin/ruff format --check . && $$bin/mypy && $$bin/lint-imports

unit: ## the tests that need no cluster: seconds
	@py=$(PY); exec $$py -m pytest -m "not cluster and not system"

pythons: ## the same, on every Python that the project is for
	@py=$(PY); exec $$py -m tests.pythons

system: ## the story as a test
	@py=$(PY); exec $$py -m pytest -m system

clone: ## README's own way from a clean clone: pulumi install, up and destroy on the testbed
	@py=$(PY); exec $$py -m pytest tests/infra/fromclone.py -s

disrupt: ## NODES=200 under-used nodes are consolidated on a real control plane
	@py=$(PY); exec $$py -m pytest tests/system/test_disruption.py -s -k under_used --under-used-nodes=$(NODES)

crds: ## render crds/ from controller/apis
	@py=$(PY); exec $$py -m controller.apis.crds

base: ## pin what the controller's image stands on to today's, with its fixes (asks docker)
	@tag=$$(sed -n 's/^ARG PYTHON=\(.*\)@.*/\1/p' Dockerfile); \
	digest=$$(docker buildx imagetools inspect "$$tag" --format '{{.Manifest.Digest}}') && \
	sed -i.old "s|^ARG PYTHON=.*|ARG PYTHON=$$tag@$$digest|" Dockerfile && rm Dockerfile.old && \
	grep '^ARG PYTHON=' Dockerfile

image: ## build the controller's image for both architectures without a container engine (root, buildah)
	@py=$(PY); exec $$py -m tests.image

lock: ## pin what `pulumi install` installs to what the tests run on
	@py=$(PY); exec $$py -m tests.infra.lockfile

fmt: ## format the code
	@py=$(PY); bin=$$(dirname $$py); $$bin/ruff check --fix -q . ; $$bin/ruff format .

up: ## start the testbed and leave it running
	@py=$(PY); exec $$py -m testbed up

down: ## stop it, and prove that nothing is left
	@py=$(PY); exec $$py -m testbed down

status: ## what runs in the testbed
	@py=$(PY); exec $$py -m testbed status

race: ## Joiner's engine against Karpenter's, on the same worlds
	@py=$(PY); exec $$py -m tests.benchmarks.race

bench: ## pods in, pods running: Joiner and Karpenter by turns on one control plane
	@py=$(PY); exec $$py -m tests.benchmarks.endtoend

upstream: ## Karpenter's own regression suite against Joiner: a table of its 99 specs, about an hour
	@py=$(PY); exec $$py -m tests.upstream

trace: ## whole days of a cluster on a simulated clock, decided by Joiner and by Karpenter
	@py=$(PY); exec $$py -m tests.trace

faults: ## all that can go wrong, seed by seed on virtual time, and an auditor that looks
	@py=$(PY); exec $$py -m tests.faults --seeds 1-500

AUDITOR = pip-audit==2.9.0

audit: ## the packages in use against the advisories that their registry publishes
	@py=$(PY); home=$$(dirname $$(dirname $$py)); tool=$$home-audit; \
	test -x $$tool/bin/pip-audit || { $$py -m venv $$tool && $$tool/bin/pip install -q $(AUDITOR); } && \
	exec $$tool/bin/pip-audit --strict --progress-spinner off --path $$home/lib/python*/site-packages

aws: ## REGION=us-west-2 SPEND=5: the story on your AWS account, within so many dollars; it costs money
	@py=$(PY); exec $$py -m tests.account --region "$(REGION)" --spend "$(SPEND)"
