# Front door. The build itself is Meson's (meson.build); this file sets things up and forwards.
# Variables: BUILD (build folder), MODEL (name for `make run`), HOST, PORT, J (parallel jobs).

BUILD ?= build
MODEL ?= smollm2
HOST  ?= 127.0.0.1
PORT  ?= 8080
J     ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help run test build check asan tsan clang soak soak-long spec-same cache-soak sanitize-all kills fuzz kcheck bench format format-check install clean
MAKEFLAGS += --no-print-directory

help: ## this list
	@echo "make TARGET; the targets:"
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/\1|\2/p' Makefile | \
	  while IFS='|' read -r t d; do printf '  %-16s %s\n' "$$t" "$$d"; done

run: ## set up, build, fetch the default model once and serve it on HOST:PORT
	@tools/setup.sh run $(BUILD)
	@$(MAKE) --silent compile
	@$(BUILD)/quern get $(MODEL)
	@exec $(BUILD)/quern serve --model $(MODEL) --host $(HOST) --port $(PORT)

test: ## set up and run every test: the last line is "N passed, N failed, N skipped"
	@tools/setup.sh test $(BUILD)
	@python3 tools/run_tests.py --build $(BUILD)

build: ## set up and build $(BUILD)/quern
	@tools/setup.sh run $(BUILD)
	@$(MAKE) compile

# `make run` configures without the tests when the test library is not there; `make test` turns them
# on. Quiet when there is nothing to do: `make run` should start at once.
.PHONY: compile
compile:
	@test -f $(BUILD)/build.ninja || \
	  meson setup $(BUILD) -Dtests=auto > $(BUILD).setup.log 2>&1 || \
	  { cat $(BUILD).setup.log; rm -f $(BUILD).setup.log; exit 1; }
	@rm -f $(BUILD).setup.log
	@test -x $(BUILD)/src/cli/quern || echo "Building quern in $(BUILD)/ (a minute or two)"
	@ninja -C $(BUILD) -j $(J) src/cli/quern > $(BUILD)/compile.log 2>&1 || \
	  { cat $(BUILD)/compile.log; exit 1; }
	@ln -sf src/cli/quern $(BUILD)/quern

check: ## the quick part of the tests: source checks and the gcc build's tests
	@tools/setup.sh test $(BUILD)
	@python3 tools/run_tests.py --build $(BUILD) --quick

asan tsan clang: ## that stage of the tests alone
	@tools/setup.sh test $(BUILD)
	@python3 tools/run_tests.py --build $(BUILD) $@

soak: ## 10,000 mixed requests over each of two models, 8 at a time, a fifth aborted (the tests take a few)
	@tools/setup.sh test $(BUILD)
	@$(MAKE) build
	@ninja -C $(BUILD) -j $(J) --quiet tests/http/quern-scripted
	@QUERN_SOAK=10000 QUERN_BUILD=$(BUILD) QUERN_BIN=$(BUILD)/quern $(BUILD)/venv/bin/python -m pytest -q \
	  -p no:cacheprovider tests/http/test_soak.py

spec-same: ## guesses change nothing: 200 prompts with every kind on every small model, 1,000 patterns taken back
	@tools/setup.sh test $(BUILD)
	@ninja -C $(BUILD) -j $(J) --quiet tests/unit/sched/test_spec_same tests/unit/model/test_take_back
	@QUERN_SHARED=$${QUERN_SHARED:-$(CURDIR)/../shared} SPEC_SAME=200 $(BUILD)/tests/unit/sched/test_spec_same
	@QUERN_SHARED=$${QUERN_SHARED:-$(CURDIR)/../shared} TAKE_BACK=1000 $(BUILD)/tests/unit/model/test_take_back

soak-long: ## 100,000 generated tokens of a windowed model in three KV formats: nothing grows
	@$(MAKE) build
	@ninja -C $(BUILD) -j $(J) --quiet tests/unit/model/test_kv_quant
	@QUERN_SOAK_TOKENS=100000 $(BUILD)/tests/unit/model/test_kv_quant

sanitize-all: ## the sanitizers' tests with nothing left out for time: an hour or two
	@tools/setup.sh test $(BUILD)
	@python3 tools/run_tests.py --build $(BUILD) $@

CACHE_OPS ?= 25000
cache-soak: ## 100,000 random operations and more against cache tree, KV pages and disk, under ASan and TSan
	@tools/setup.sh test $(BUILD)
	@QUERN_CACHE_OPS=$(CACHE_OPS) python3 tools/run_tests.py --build $(BUILD) cache-soak

kills: ## kill -9 under load, 500 times: the disk cache never serves a wrong byte (the tests do it ten times)
	@tools/setup.sh test $(BUILD)
	@$(MAKE) build
	@QUERN_KILLS=500 QUERN_BUILD=$(BUILD) QUERN_BIN=$(BUILD)/quern $(BUILD)/venv/bin/python -m pytest -q \
	  -p no:cacheprovider tests/cli/test_disk_cache.py -k kill_9

FUZZ_SECONDS ?= 60
fuzz: ## libFuzzer over every target, FUZZ_SECONDS each (or T=name for one)
	@tools/setup.sh test $(BUILD)
	@tools/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS) $(T)

kcheck: ## every kernel against the reference, with timings (ARGS=...)
	@$(MAKE) build
	@ninja -C $(BUILD) -j $(J) --quiet tests/kcheck/kcheck
	@$(BUILD)/tests/kcheck/kcheck $(ARGS)

bench: ## speed of the default model (ARGS=... goes to quern bench)
	@$(MAKE) build
	@$(BUILD)/quern get $(MODEL)
	@$(BUILD)/quern bench --model $(MODEL) $(ARGS)

format: ## clang-format over all C files
	@tools/format.sh

format-check: ## is everything formatted?
	@tools/format.sh --check

install: build ## install quern (DESTDIR, meson's prefix)
	@meson install -C $(BUILD) --no-rebuild

clean: ## remove the build folder; models in the cache stay
	@rm -rf $(BUILD)
