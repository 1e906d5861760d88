# make demo    a real agent program in a durable session, end to end
# make test    the quick suite, with linting and types
# make soak    the long counts
# make bench   the benchmarks
# make conformance   what each program can do: every row with the real programs, and the table in the README

PYTHON ?= python3
VENV ?= .venv
HARNESS ?= codex
BIN := $(VENV)/bin

.PHONY: demo test lint soak bench conformance faces bubblewrap containers clean

demo: $(VENV)/.demo
	$(BIN)/hostler demo --harness $(HARNESS)

test: $(VENV)/.dev $(VENV)-litellm/.ready .programs/.ready bubblewrap containers lint
	$(BIN)/pytest -n 3 --dist loadgroup -m "not soak" $(AGAIN)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_faces.py --check

soak: $(VENV)/.dev $(VENV)-litellm/.ready .programs/.ready bubblewrap containers
	HOSTLER_SOAK=1 timeout --signal=INT 7200 $(BIN)/pytest -n 2 --dist loadgroup -m "soak or longer"

bench: $(VENV)/.dev $(VENV)-peer/.ready .programs/.ready bubblewrap containers
	PATH="$(CURDIR)/.programs/node_modules/.bin:$$PATH" $(BIN)/python benchmarks/run.py

conformance: $(VENV)/.dev .programs/.ready bubblewrap
	PATH="$(CURDIR)/.programs/node_modules/.bin:$$PATH" $(BIN)/python -m hostler.testing.conformance --all --write README.md

faces: $(VENV)/.dev
	$(BIN)/python scripts/generate_faces.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[claude,codex]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[claude,codex,litellm,deepagents,dev]"
	touch $@

# The real LiteLLM gateway holds some of our packages at older versions: it lives in an environment of its own.
$(VENV)-litellm/.ready:
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-litellm/bin/python -m pip install --quiet "litellm[proxy]>=1.100"
	touch $@

# The agent programs that are no Python packages; the tests look for them here first. Some need a newer Node than many
# systems have, so one is installed with them.
PROGRAMS := "opencode-ai@1" "node@24" "@agentclientprotocol/claude-agent-acp@0.101" "@zed-industries/codex-acp@0.16" \
  "@qwen-code/qwen-code@0.24" "@earendil-works/pi-coding-agent@1" "@google/gemini-cli@0.61"
.programs/.ready: Makefile
	npm install --prefix .programs --no-save --no-audit --no-fund --loglevel=error $(PROGRAMS)
	PATH="$(CURDIR)/.programs/node_modules/.bin:$$PATH" sh -ec 'for it in opencode qwen pi gemini; do $$it --version; done; command -v claude-agent-acp; command -v codex-acp'
	touch $@

# The sandbox. Where it can neither be found nor installed its tests are skipped, which CI does not let pass.
bubblewrap:
	@command -v bwrap >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -y -qq --no-install-recommends bubblewrap || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap; }; \
	  else \
	    echo "bubblewrap is not installed, and only root can do it with apt-get: its tests are skipped"; \
	  fi; }

# Docker, Podman, gVisor and Redis for the tests, and images made of installed files, which are kept in .containers. Where
# the engines can neither be found nor installed their tests are skipped, which CI does not let pass.
CONTAINERS := docker.io containerd runc iptables iproute2 podman netavark aardvark-dns catatonit runsc redis-server
containers: $(VENV)/.dev .programs/.ready
	@for program in dockerd runc podman runsc redis-server; do command -v $$program >/dev/null || missing=yes; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -y -qq --no-install-recommends $(CONTAINERS) python3-minimal || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(CONTAINERS) python3-minimal; }; \
	  else \
	    echo "not all of $(CONTAINERS) are installed, and only root can do it with apt-get: their tests are skipped"; \
	  fi; fi
	$(BIN)/python -m tests.containers.daemons

# The peer that the benchmarks compare with.
$(VENV)-peer/.ready:
	$(PYTHON) -m venv $(VENV)-peer
	$(VENV)-peer/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-peer/bin/python -m pip install --quiet "litellm>=1.108" claude-agent-sdk openai-codex
	touch $@

clean:
	@sort -r /proc/mounts | cut -d" " -f2 | grep "^$(CURDIR)/.containers/" | xargs -r umount
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-peer .programs .containers
