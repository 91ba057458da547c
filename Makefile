# Needs Python 3.11 or newer, make and a C++ compiler; everything else goes into .venv.
#   make demo                    fold the shipped model and show the result
#   make test                    run the tests
#   make cuda                    build the kernels for CUDA too; needs CMake and a CUDA toolkit
#   make PYTHON=python3.12 test  with another interpreter

PYTHON ?= python3
VENV   ?= .venv
MODEL  ?=
# ON: warnings of the compilers of the kernels are errors, as are spilled registers.
STRICT ?= OFF

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := $(shell find custom_ops -type f)
# Installs the packages of one extra without building the kernels again.
EXTRA  := import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
          print(*project["optional-dependencies"][sys.argv[1]], sep="\n")
extra   = $(BIN)/python -c '$(EXTRA)' $(1) >$(VENV)/$(1).txt && $(PIP) -r $(VENV)/$(1).txt
DEMO   := build/demo
DIGITS := models/digits_vit/digits_vit.onnx

.DEFAULT_GOAL := help
.PHONY: help demo test soundness test-slow test-training test-frameworks test-serve test-examples test-wheel test-image test-compilers test-compatibility test-compatibility-fast cuda lint format types docs site bench bench-models mutants image clean

help:
	@echo 'make demo       fold the shipped model; compare accuracy and time before and after'
	@echo 'make test       run the tests'
	@echo 'make soundness  run campaigns: drawn graphs, false laws, damaged files, kills; every recipe and page'
	@echo 'make test-slow  run the long tests too; installs torch and transformers'
	@echo 'make test-training test training, checkpoints and Ray; installs torch and transformers'
	@echo 'make test-frameworks test training in Flax and Keras; installs jax, flax and keras'
	@echo 'make test-serve test the server; installs MLServer and tritonclient (Python 3.11 or 3.12)'
	@echo 'make test-examples run the examples; installs torch, optimum and onnxruntime-genai'
	@echo 'make test-wheel build the wheel and follow README with it in a fresh environment'
	@echo 'make test-image build the container image and fold the shipped model in it'
	@echo 'make test-compilers compile the kernels with each of g++ 11, g++ 12 and clang++ 14 beside c++'
	@echo 'make test-compatibility try every runtime and tool on what onnxfold writes (an hour or two)'
	@echo 'make test-compatibility-fast the part of it that is quick'
	@echo 'make cuda       build the kernels for CUDA too (docs/cuda.md)'
	@echo 'make lint       check style          make format  repair it'
	@echo 'make types      check types'
	@echo 'make docs       write the generated pages of docs/'
	@echo 'make site       build the documentation site in build/site'
	@echo 'make bench      time the tool on GPT-2 (MODEL=gpt2.onnx; exported when not given)'
	@echo 'make mutants    turn decisions of the code around; does a test notice? (N=20 SEED=0)'
	@echo 'make image      build the container image (docs/docker.md)'
	@echo 'make clean      remove all that was made, .venv too'

demo: $(VENV)/.demo
	@mkdir -p $(DEMO)
	@echo '$$ onnxfold optimize $(DIGITS) -o $(DEMO)/fast.onnx --report $(DEMO)/report.html'
	@$(BIN)/onnxfold optimize $(DIGITS) -o $(DEMO)/fast.onnx --report $(DEMO)/report.html
	@echo
	@echo '$$ python -m models.digits_vit.accuracy $(DIGITS) $(DEMO)/fast.onnx'
	@$(BIN)/python -m models.digits_vit.accuracy $(DIGITS) $(DEMO)/fast.onnx
	@echo
	@echo '$$ onnxfold bench $(DIGITS) $(DEMO)/fast.onnx'
	@$(BIN)/onnxfold bench $(DIGITS) $(DEMO)/fast.onnx
	@echo
	@echo '$(DEMO)/fast.onnx computes the same function with cheaper norms;'
	@echo '$(DEMO)/report.html shows what became of each, and every error that was measured.'

test: $(VENV)/.test
	@$(BIN)/python -m pytest -q -n 2 -rs

soundness: $(VENV)/.test
	@$(BIN)/python -m pytest -q -n 2 -rs -m 'campaign and not slow'

test-slow: $(VENV)/.slow
	@$(BIN)/python -m pytest -q -n 2 -m 'slow or not slow'

test-training: $(VENV)/.slow
	@$(BIN)/python -m pytest -q -rs -m 'slow or not slow' tests/training tests/checkpoint \
	  tests/geometry/test_ray.py

# Keras without a backend of its own takes TensorFlow, which the extra does not bring.
test-frameworks: $(VENV)/.frameworks
	@KERAS_BACKEND=jax $(BIN)/python -m pytest -q -rs tests/training/test_flax.py tests/training/test_keras.py

test-serve: $(VENV)/.serve
	@$(BIN)/python -m pytest -q -rs tests/serving/server

# With optimum and onnxruntime-genai, in an environment of their own, as their packages need.
test-examples: $(VENV)/.test
	@$(BIN)/python -m pytest -q -rs -m 'slow or not slow' tests/examples

test-wheel: $(VENV)/.test
	@$(BIN)/python -m pytest -q -rs -m slow tests/project/test_newcomer.py

test-image: $(VENV)/.test
	@$(BIN)/python -m pytest -q -rs -m slow tests/project/test_image.py

test-compilers: $(VENV)/.test
	@$(BIN)/python -m pytest -q -rs -m 'slow or not slow' tests/custom_ops/test_compilers.py

# With an environment for each runtime, in build/compatibility; it writes docs/compatibility.md.
test-compatibility: $(VENV)/.slow
	@$(BIN)/python -m tests.compatibility $(SUBJECTS)

# The transformers optimizer of ONNX Runtime imports torch, which `make test` does not install.
test-compatibility-fast: $(VENV)/.slow
	@$(BIN)/python -m pytest -q -rs -m 'slow or torch' tests/compatibility \
	  tests/project/test_pipeline_page.py tests/passes/centring tests/passes/lower

# Into the sources, where an editable install finds it; it replaces nothing.
cuda:
	@for tool in nvcc cmake; do command -v $$tool >/dev/null || { \
	  echo "make cuda needs $$tool: a CUDA toolkit, 12 or newer, and CMake"; exit 1; }; done
	@cmake -S custom_ops -B build/cuda -DONNXFOLD_CUDA=ON $(if $(ARCHITECTURES),"-DONNXFOLD_CUDA_ARCHITECTURES=$(ARCHITECTURES)") \
	  -DONNXFOLD_DRIVER=ON -DONNXFOLD_STRICT=$(STRICT)
	@cmake --build build/cuda --parallel $(shell nproc)
	@cmake --install build/cuda --prefix . --component onnxfold_ops_cuda

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/.dev
	@$(BIN)/mypy

docs: $(VENV)/.demo
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/figures.py

site: $(VENV)/.site
	@$(BIN)/python -m mkdocs build --quiet --strict

bench: $(VENV)/.slow
	@$(BIN)/python -m benchmarks.fold $(MODEL)

bench-models: $(VENV)/.slow
	@$(BIN)/python -m benchmarks.models $(EXPORTS)

mutants: $(VENV)/.slow
	@$(BIN)/python -m benchmarks.mutants --count $(or $(N),20) --seed $(or $(SEED),0)

image:
	@docker/build.sh

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@rm -f onnxfold/_native/libonnxfold_ops_cuda.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than the files that decide what is installed, so a second call is quick.
# The install is editable: only the description of the package and the kernels need another.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'onnxfold needs Python 3.11 or newer: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'making a virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.venv pyproject.toml $(NATIVE)
	@echo 'installing onnxfold, its kernels and ONNX Runtime into $(VENV)'
	@$(PIP) --editable '.[ort]' --config-settings=cmake.define.ONNXFOLD_STRICT=$(STRICT)
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo 'installing what the tests need'
	@$(call extra,test)
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo 'installing the linters'
	@$(call extra,dev)
	@touch $@

$(VENV)/.site: $(VENV)/.demo
	@echo 'installing what the documentation site needs'
	@$(call extra,site)
	@touch $@

$(VENV)/.slow: $(VENV)/.test
	@echo 'installing torch, transformers and Ray'
	@$(call extra,models)
	@$(call extra,ray)
	@touch $@

$(VENV)/.frameworks: $(VENV)/.test
	@echo 'installing Flax and Keras'
	@$(call extra,flax)
	@$(call extra,keras)
	@touch $@

$(VENV)/.serve: $(VENV)/.test
	@echo 'installing MLServer and tritonclient'
	@$(call extra,serve)
	@$(call extra,test-serve)
	@touch $@
