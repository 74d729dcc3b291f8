# The commands that people, hooks and CI use. `make help` lists them.
PYTHON ?= python3
NODES ?= 200
KUBERNETES ?=
export PYTHONPATH := $(CURDIR)
export JOINER_KUBERNETES := $(KUBERNETES)
# Otherwise each process of the tests compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

# The interpreter with all dependencies. The first use creates it outside the checkout.
PY = $$($(PYTHON) -m testbed.environment || echo false)

.PHONY: advise publish version package push release manifests reference docs aws help demo test check unit system disrupt crds base lock fmt up env fault logs down status race bench upstream trace faults audit pythons clone languages image
.DEFAULT_GOAL := help

# Two processes run the tests. Each takes a whole file at a time, because its tests share fixtures,
# in the order of tests/conftest.py.
WORKERS = -n 2 --dist loadfile --no-loadscope-reorder

help: ## show this list
	@grep -hE '^(##@ |[a-z]+:.*## )' $(MAKEFILE_LIST) | \
	awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5); next} {printf "  make %-9s %s\n", $$1, $$2}'

##@ Try it: no AWS account, nothing outside this machine

demo: ## the whole demonstration on this machine: cluster, pods, nodes, destroy, nothing left
	@py=$(PY); exec $$py -m testbed demo

up: ## start the testbed with the stack deployed, and leave it running
	@py=$(PY); exec $$py -m testbed up

env: ## print the shell variables of the testbed: eval "$(make env)"
	@py=$(PY); exec $$py -m testbed env

fault: ## cause a fault of the testbed's cloud: make fault FAULT="interrupt NODE"
	@py=$(PY); set -f; exec $$py -m testbed fault $(or $(FAULT),--help)

status: ## show what runs in the testbed
	@py=$(PY); exec $$py -m testbed status

logs: ## print what the controller on the testbed logged: make logs | grep default/web-1
	@py=$(PY); exec $$py -m testbed logs

down: ## stop the testbed and check that nothing is left
	@py=$(PY); exec $$py -m testbed down

##@ See what your cluster would cost

advise: ## what your cluster would cost under Joiner; reads only. WORLD=file: a recorded world
	@py=$(PY); exec $$py -m controller advise $(WORLD)

##@ Change it

check: ## lint, types and layers only
	@py=$(PY); bin=$$(dirname $$py); \
	$$bin/ruff check . && $$bin/ruff format --check . && $$bin/mypy && $$bin/lint-imports

unit: ## the tests that start and build nothing: about two minutes on two cores
	@py=$(PY); exec $$py -m pytest -m unit $(WORKERS)

test: check ## lint, types, layers, then every test
	@py=$(PY); exec $$py -m pytest $(WORKERS)

fmt: ## format the code
	@py=$(PY); bin=$$(dirname $$py); $$bin/ruff check --fix -q . ; $$bin/ruff format .

reference: ## render docs/reference from the code
	@py=$(PY); exec $$py -m tests.docs.references

crds: ## render crds/, and the chart with their copies, from controller/apis
	@py=$(PY); $$py -m controller.apis.crds && exec $$py -m infra.deployment.manifests

manifests: ## render manifests/ and charts/ from infra/deployment/controller.py
	@py=$(PY); exec $$py -m infra.deployment.manifests

lock: ## write infra/requirements.txt: the versions that the tests use
	@py=$(PY); exec $$py -m tests.infra.lockfile

docs: ## build the documentation site into site/, without network; warnings are errors
	@py=$(PY); exec $$py -m mkdocs build --strict

##@ Test more

system: ## the end-to-end tests on the testbed; KUBERNETES=1.31 runs them on the oldest version
	@py=$(PY); exec $$py -m pytest -m system

disrupt: ## NODES=200 under-used nodes are consolidated on a real control plane
	@py=$(PY); exec $$py -m pytest tests/system/test_disruption.py -s -k under_used --under-used-nodes=$(NODES)

pythons: ## the unit tests on every supported Python
	@py=$(PY); exec $$py -m tests.pythons

clone: ## the README's steps in a clean clone: pulumi install, up and destroy on the testbed
	@py=$(PY); exec $$py -m pytest tests/infra/fromclone.py -s

languages: ## programs in TypeScript, Go and Python through `pulumi package add`: needs Node.js and npm
	@py=$(PY); exec $$py -m pytest tests/infra/languages.py -s

AUDITOR = pip-audit==2.9.0

audit: ## check the packages in use against published advisories
	@py=$(PY); home=$$(dirname $$(dirname $$py)); tool=$$home-audit; \
	test -x $$tool/bin/pip-audit || { $$py -m venv $$tool && $$tool/bin/pip install -q $(AUDITOR); } && \
	exec $$tool/bin/pip-audit --strict --progress-spinner off --path $$home/lib/python*/site-packages

aws: ## REGION=us-west-2 SPEND=5: run the demonstration in your AWS account, up to this many dollars
	@py=$(PY); exec $$py -m bench.account --region "$(REGION)" --spend "$(SPEND)"

##@ Compare it

race: ## Joiner's engine against Karpenter's, on the same worlds
	@py=$(PY); exec $$py -m bench.race

bench: ## time from pods created to pods running: Joiner and Karpenter in turn on one control plane
	@py=$(PY); exec $$py -m bench.endtoend

trace: ## simulated days of a cluster, operated by Joiner and by Karpenter
	@py=$(PY); exec $$py -m bench.trace

faults: ## the fault campaign: seeded faults on virtual time, checked by an auditor
	@py=$(PY); exec $$py -m bench.faults --seeds 1-500

upstream: ## Karpenter's own regression and disruption suites against Joiner: a table of the 114 specs
	@py=$(PY); exec $$py -m bench.upstream

##@ Release it

VERSION = $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

version: ## print the version
	@echo $(VERSION)

base: ## pin the base image of the controller to today's digest (needs Docker)
	@tag=$$(sed -n 's/^ARG PYTHON=\(.*\)@.*/\1/p' Dockerfile); \
	digest=$$(docker buildx imagetools inspect "$$tag" --format '{{.Manifest.Digest}}') && \
	sed -i.old "s|^ARG PYTHON=.*|ARG PYTHON=$$tag@$$digest|" Dockerfile && rm Dockerfile.old && \
	grep '^ARG PYTHON=' Dockerfile

image: ## build the controller's image for both architectures without a container engine (root, buildah)
	@py=$(PY); exec $$py -m tests.image

SBOM = cyclonedx-bom==7.5.0

package: ## write the wheel, the charts and the SBOM of the locked packages to dist/
	@py=$(PY); tool=$$(dirname $$(dirname $$py))-sbom; rm -rf dist && mkdir dist && \
	{ test -x $$tool/bin/cyclonedx-py || { $$py -m venv $$tool && $$tool/bin/pip install -q $(SBOM); }; } && \
	grep == infra/requirements.txt | PYTHONWARNINGS=ignore $$tool/bin/cyclonedx-py requirements \
	    --pyproject pyproject.toml --output-reproducible -o dist/joiner.cdx.json - && \
	$$py -m pip wheel --quiet --no-deps --wheel-dir dist . && rm -rf build *.egg-info && \
	for chart in joiner joiner-crds; do \
	    tar --dereference -czf dist/$$chart-$(VERSION).tgz -C charts $$chart || exit 1; \
	done && ls dist

IMAGE ?= joiner:$(VERSION)

push: ## IMAGE=registry/joiner:tag: assemble the image for both architectures and push it
	@mkdir -p dist; py=$(PY); exec $$py -m infra.deployment.image "$(IMAGE)" dist/image

release: ## IMAGE=registry/joiner:tag: record the image of a release, for the commit that gets its tag
	@py=$(PY); exec $$py -m infra.release "$(IMAGE)"

publish: ## publish the documentation of this version to the branch gh-pages, as `latest` too
	@py=$(PY); exec $$py -m mike deploy --push --update-aliases $(VERSION) latest
