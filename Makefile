# make demo    a real agent program in a durable session, end to end
# make test    the quick suite, with linting and types
# make soak    the long counts
# make bench   the benchmarks

PYTHON ?= python3
VENV ?= .venv
HARNESS ?= codex
BIN := $(VENV)/bin

.PHONY: demo test lint soak bench faces bubblewrap clean

demo: $(VENV)/.demo
	$(BIN)/hostler demo --harness $(HARNESS)

test: $(VENV)/.dev $(VENV)-litellm/.ready .programs/.ready bubblewrap lint
	$(BIN)/pytest -n 3 --dist loadgroup -m "not soak"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_faces.py --check

soak: $(VENV)/.dev $(VENV)-litellm/.ready .programs/.ready bubblewrap
	HOSTLER_SOAK=1 timeout --signal=INT 3600 $(BIN)/pytest -n 2 --dist loadgroup -m "soak or longer"

bench: $(VENV)/.dev $(VENV)-peer/.ready .programs/.ready bubblewrap
	PATH="$(CURDIR)/.programs/node_modules/.bin:$$PATH" $(BIN)/python benchmarks/run.py

faces: $(VENV)/.dev
	$(BIN)/python scripts/generate_faces.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[claude,codex]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[claude,codex,litellm,dev]"
	touch $@

# The real LiteLLM gateway holds some of our packages at older versions: it lives in an environment of its own.
$(VENV)-litellm/.ready:
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-litellm/bin/python -m pip install --quiet "litellm[proxy]>=1.100"
	touch $@

# The agent programs that are no Python packages; the tests look for them here first.
.programs/.ready:
	npm install --prefix .programs --no-save --no-audit --no-fund --loglevel=error "opencode-ai@1"
	.programs/node_modules/.bin/opencode --version
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

# The peer that the benchmarks compare with.
$(VENV)-peer/.ready:
	$(PYTHON) -m venv $(VENV)-peer
	$(VENV)-peer/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-peer/bin/python -m pip install --quiet "litellm>=1.108" claude-agent-sdk openai-codex
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-peer .programs
