# Targets are documented by the comment after each name; `make` alone prints them.

GO        ?= go
TOOLS     := $(CURDIR)/.tools
NATS      := $(TOOLS)/nats
STATIC    := $(TOOLS)/staticcheck
FUZZTIME  ?= 10s
BENCHTIME ?= 1x
DURATION  ?= 30m
# SERVER=2.14.10 builds the campaign's nodes with that nats-server.
CHAOS     := $(if $(SERVER),export GOFLAGS=-modfile=$(CURDIR)/internal/chaos/nats-$(SERVER).mod;) $(GO) build -o bin/chaosrun ./internal/chaos/cmd/chaosrun && bin/chaosrun run -report bin/chaos-report.json

# The real binary's tests run by themselves: beside others they would measure the machine's load.
LIST := set -e; pkgs=$$($(GO) list ./...); pkgs=$$(echo "$$pkgs" | grep -v '/internal/e2e$$')

# A registry may be busy for a moment: what is fetched is asked for three times.
FETCH := fetch() { for pause in 2 10 0; do "$$@" && return; sleep $$pause; done; return 1; }; fetch

# A guard that may be left out by a build tag, and a test that must notice. docs/TESTING.md says why it does.
MUTANTS := \
	mutant_cursorfirst:kv:TestEveryTransactionIsWhole \
	mutant_cursorfirst:kv:TestFailedCommit \
	mutant_noincarnation:internal/propose:TestOtherIncarnation \
	mutant_noincarnation:internal/propose:TestRandom \
	mutant_gap:apply:TestThreeReplicas \
	mutant_gap:apply:TestScripts \
	mutant_gap:apply:TestErrorsLeaveTheStateUntouched \
	mutant_gap:internal/node:TestReplicaFillsGapsFromTheCursor \
	mutant_batchdisk:internal/node:TestNextAfterRestart \
	mutant_nodedupe:apply:TestThreeReplicas \
	mutant_nodedupe:apply:TestScripts \
	mutant_nodedupe:apply:TestEntryIDHasTheIncarnation

# Two cores have enough to do with one target.
.NOTPARALLEL:

.PHONY: help build run test modules unit e2e mutants fuzz bench bench-compare bench-setup chaos soak chaos-setup fmt lint tools clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/allocnode
	$(GO) build -o bin/allocnode ./cmd/allocnode

run: build ## start three nodes on this machine, reserve 1000 ids, stay until Ctrl-C; DATA=dir keeps the data
	@exec bin/allocnode dev --try orders:1000 $(if $(DATA),--data '$(DATA)')

test: modules tools lint unit mutants fuzz e2e ## everything: lint, tests with the race detector, mutants, fuzzing, the real binary (some 12 minutes on two cores)

modules: ## fetch the modules that the tests are built with
	@$(FETCH) $(GO) list -deps -test ./... > /dev/null
	@cd bench && $(FETCH) $(GO) list -deps -test ./... > /dev/null

# Tests of whole clusters mostly wait, for elections and deadlines: more of them at a time than there are cores.
unit: ## the packages' tests with the race detector
	@$(LIST); $(GO) test -race -parallel 6 -timeout 12m $$pkgs
	cd bench && $(GO) test -timeout 3m ./...

# The binary is built by the test, so that go test does not know what an old result rests on.
e2e: tools ## the real binary and the real nats CLI, with the race detector
	$(GO) test -race -count=1 -parallel 4 -timeout 12m ./internal/e2e

# A mutant that does not build, and a test that fails without it, would look like one that was caught.
mutants: ## builds with one guard taken out, each of which its tests must catch (under 3 minutes)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; survived=0; last=; \
	for m in $(MUTANTS); do \
		tag=$${m%%:*}; test=$${m##*:}; pkg=$${m#*:}; pkg=$${pkg%:*}; \
		if [ "$$tag $$pkg" != "$$last" ]; then \
			$(GO) test -c -tags "$$tag" -o "$$dir/mutant" ./$$pkg; $(GO) test -c -o "$$dir/product" ./$$pkg; last="$$tag $$pkg"; \
		fi; \
		run="-test.run ^$$test$$ -test.timeout 60s -test.v"; \
		if ! (cd $$pkg && "$$dir/product" $$run) > "$$dir/out" 2>&1 || ! grep -q "^--- PASS: $$test" "$$dir/out"; then \
			cat "$$dir/out"; echo "$$pkg $$test fails without $$tag, or is not there"; exit 1; \
		elif (cd $$pkg && "$$dir/mutant" $$run) > "$$dir/out" 2>&1; then \
			echo "$$tag SURVIVED $$pkg $$test"; survived=1; \
		elif grep -q "^--- FAIL: $$test" "$$dir/out"; then \
			echo "$$tag caught by $$pkg $$test"; \
		else \
			cat "$$dir/out"; echo "$$tag ended $$pkg $$test, which did not say why"; exit 1; \
		fi; \
	done; exit $$survived

# One target at a time is all that go test takes.
fuzz: ## each fuzz target for FUZZTIME (10s)
	@$(LIST); for pkg in $$pkgs; do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "fuzz $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -timeout 3m $$pkg; \
		done; \
	done

bench: ## the benchmarks whose figures stand in docs/DESIGN.md
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout 30m ./internal/benchmark

bench-compare: ## allocnode beside etcd, NATS, PostgreSQL, Redis and generators, in one run; BENCHFLAGS='-rounds 1 -duration 1s'
	cd bench && $(GO) build -o ../bin/bench . && exec ../bin/bench $(BENCHFLAGS)

# What Debian's packages start when they are installed would be measured too, and hold the ports.
bench-setup: ## as root, on Debian: install what bench-compare needs beside Go, and leave no service running
	@set -e; policy=/usr/sbin/policy-rc.d; missing=; \
	for p in postgresql redis-server; do \
		dpkg-query -W -f '$${Status}' $$p 2> /dev/null | grep -q ' installed$$' || missing="$$missing $$p"; \
	done; \
	if test -z "$$missing"; then echo "postgresql and redis-server are there"; exit 0; fi; \
	if ! test -e $$policy; then \
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT; printf '#!/bin/sh\nexit 101\n' > $$policy; chmod 755 $$policy; \
	fi; \
	apt-get update -q; DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -qy $$missing; \
	if command -v systemctl > /dev/null && test -d /run/systemd/system; then systemctl disable $$missing; fi

chaos: ## as root: three nodes under every fault, in about five minutes; SEED=n repeats a schedule (docs/TESTING.md)
	@$(CHAOS) $(if $(SEED),-seed $(SEED)) $(CHAOSFLAGS)

soak: ## as root: five nodes under longer faults for DURATION (30m)
	@$(CHAOS) -nodes 5 -long -duration $(DURATION) $(if $(SEED),-seed $(SEED)) $(CHAOSFLAGS)

chaos-setup: ## as root, on Debian: install what chaos needs beside Go
	apt-get -o Acquire::Retries=3 update -q && apt-get -o Acquire::Retries=3 install --no-install-recommends -qy iproute2 e2fsprogs util-linux mount strace

fmt: ## format the code
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')

lint: $(STATIC) ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
		test -z "$$unformatted" || { echo "not formatted, make fmt does it:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(STATIC) ./...
	@cd bench; if GOPROXY=off $(GO) list -deps -test ./... > /dev/null 2>&1; then \
		echo "bench: go vet, staticcheck"; $(GO) vet ./... && $(STATIC) ./...; \
	else \
		echo "bench: not looked at, its modules are not here yet: make unit fetches them"; \
	fi

tools: $(NATS) $(STATIC) ## fetch what the tests need into .tools

$(NATS):
	@$(FETCH) env GOBIN=$(TOOLS) $(GO) install github.com/nats-io/natscli/nats@v0.5.1

$(STATIC):
	@$(FETCH) env GOBIN=$(TOOLS) $(GO) install honnef.co/go/tools/cmd/staticcheck@v0.8.2

clean: ## remove what was built and fetched
	rm -rf bin .tools
