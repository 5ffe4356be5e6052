# Everything a fresh machine needs: make demo, make test. Python 3.11 to 3.13.
PYTHON ?= python3
BIN := .venv/bin

# the tests start a hundred processes that import the same files: each file is compiled once, wherever that is off
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types tests core docs fast fuzz papers bench bench-full levels models claims constraints licences clean lock audit test-oldest soak

demo: .venv/installed
	$(BIN)/python -m mhprobe demo

test: .venv/installed-test
	@$(MAKE) --no-print-directory -j 2 types tests

types: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

# in three processes, each with a thread of its own: some tests wait for others; make test JOBS=1 for one
JOBS ?= 3
tests: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# what a change to the library or the framework can break; pages and the lab have tests of their own
core: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/library tests/framework

fast: .venv/installed-test
	$(BIN)/python -m pytest -m "not slow"

# e.g. make bench BENCH="--against bench.json --cifar cifar10.tar.gz --out new.json"
bench: .venv/installed-test
	$(BIN)/python -m benchmarks $(BENCH)

bench-full: .venv/installed-test
	$(BIN)/python -m benchmarks --size full $(BENCH)

# every figure of every paper: make papers WEIGHTS="weights/a.safetensors weights/b.safetensors" ROOT=cifar10.tar.gz
# PAPER holds further options, e.g. PAPER="data.limit_test=1000 out=pages"; what is finished is not made again
WEIGHTS ?= $(wildcard weights/*.safetensors)
papers: $(patsubst conf/paper/%.yaml,paper-%,$(wildcard conf/paper/*.yaml))
paper-%: .venv/installed
	for file in $(WEIGHTS); do \
	  $(BIN)/python -m mhprobe.study +paper=$* weights=$$file $(ROOT:%=data.root=%) $(PAPER) || exit 1; done

# docs/claims.md: all claims of all these networks, in its tables, its figure and docs/tables/claims. Some are trained for
# it. make claims ROOT=cifar10.tar.gz BEFORE=<pretrained ViT-S/14>; tools/claims_matrix.py says what a name may be. Four
# hours of one core; what is finished is not made again
CLAIMS ?= cifar10_vit_stem cifar10_vit_taught cifar10_vit_taught_seed1 cifar10_vit_taught_seed2 \
  cifar10_vit_small.seed0 cifar10_vit_small.seed1 cifar10_vit_small.seed2 cifar10_swin_taught \
  cifar10_vit_dinov2 cifar10_vit_dinov2.before digits_vit scenes_vit \
  cifar10_vit_stem.untrained cifar10_swin_taught.untrained cifar10_vit_dinov2.untrained
export BEFORE
claims: $(CLAIMS:%=claims-of-%)
	$(BIN)/python tools/claims_matrix.py write $(CLAIMS)
claims-of-%: .venv/installed
	$(BIN)/python tools/claims_matrix.py run $* $(ROOT:%=data.root=%)

# about three minutes: every name of timm's, on the meta device
models: .venv/installed
	$(BIN)/python tools/survey.py > models.tmp && mv models.tmp docs/models.md

# the site, in site/; its example is the newest demo of this checkout
docs: .venv/installed-docs
	ls outputs/demo/*/report.html >/dev/null 2>&1 || $(MAKE) demo
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# damage to every kind of file; make fuzz FUZZ=5000. Each call is bounded; a test of thousands may take hours
FUZZ ?= 500
fuzz: .venv/installed-test
	FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/framework/faults --timeout=14400

# after the whole suite has passed with what is installed
constraints: .venv/installed-test
	$(BIN)/python tools/dependencies.py constraints > constraints.tmp && mv constraints.tmp constraints.txt

# the same with the hashes of every file: pip install --require-hashes -r requirements.lock
lock: .venv/installed-supply constraints.txt
	$(BIN)/python -m uv pip compile pyproject.toml --extra test -c constraints.txt -q \
	  --generate-hashes --no-annotate --no-header --universal -o requirements.lock

# 0: nothing known against what is installed; 1: something; 3: the database could not be asked
audit: .venv/installed-supply
	$(BIN)/python tools/dependencies.py audit

# the quick tests with the oldest version of everything that pyproject.toml allows; 6 GB. With another torch and the newest
# of everything else: make test-oldest TORCH=2.9
test-oldest: .venv/installed-supply
	$(BIN)/python -m uv venv -q --clear .venv-oldest
ifdef TORCH
	$(BIN)/python -m uv pip install -q -p .venv-oldest "torch==$(TORCH).*" -e ".[test]"
else
	$(BIN)/python -m uv pip install -q -p .venv-oldest --resolution lowest-direct -e ".[test]"
# torchmetrics, and with it lightning, imports transformers where it is; without a GPU that needs torch 2.7
	$(BIN)/python -m uv pip uninstall -q -p .venv-oldest transformers
endif
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m "not slow"

# how often chance is called something: 500 draws of every law, a quarter of an hour
levels: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/levels.py > levels.tmp && mv levels.tmp docs/levels.md

# half an hour of train, probe, mask and prune in one process: what stays behind? make soak MINUTES=5
MINUTES ?= 30
soak: .venv/installed-test
	$(BIN)/python tools/soak.py $(MINUTES)

licences: .venv/installed-test
	@$(BIN)/python tools/dependencies.py licences

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e ".[live]"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install -q -e ".[docs]"
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install -q -e ".[test]"
	touch $@

.venv/installed-supply: .venv/installed-test
	$(BIN)/python -m pip install -q -e ".[supply]"
	touch $@

clean:
	rm -rf .venv dist build site
