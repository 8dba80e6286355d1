# zkagent: build, test, lint and demo. `make help` lists the targets.
SHELL := /bin/bash
GO ?= go
BIN := bin
CACHE := .cache
REAL := $(CURDIR)/$(CACHE)/real-tests
GOLANGCI_VERSION := v2.15.0
VERSION ?= $(shell git describe --tags --exact-match 2>/dev/null | sed s/^v// | grep . || echo "$$(cat VERSION)-dev+$$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)")
LDFLAGS := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 20s

.PHONY: help build test test-all plants test-versions test-page lint fuzz bench bench-lb demo gen setup clean package test-systemd test-clean prepare

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

build: ## build bin/zkagent
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/zkagent ./cmd/zkagent

setup: ## install what the tests need (Debian packages)
	@scripts/setup-tests

test: setup ## run the tests of every package against real servers, in minutes
	@GO=$(GO) scripts/test

test-all: export TEST_ALL = 1
test-all: setup ## run everything, as CI does: long tests, more seeds, planted faults, the race detector, the newest ZooKeeper
	@scripts/apt-install clickhouse-server
	@mkdir -p $(CACHE) && rm -f $(REAL)
	@ZKTEST_RECORD=$(REAL) GO=$(GO) scripts/test
	@ZKTEST_RECORD=$(REAL) GO=$(GO) scripts/test-versions newest
	@nice $(MAKE) --no-print-directory plants PLANTS=-share

plants: export GOFLAGS = -trimpath -buildvcs=false
plants: ## plant faults in the program, and look that the tests find each
	@GO=$(GO) $(GO) run ./internal/zktest/plants $(PLANTS)

test-versions: export TEST_ALL = 1
test-versions: setup ## run the tests against ZooKeepers of other Debian releases
	@GO=$(GO) scripts/test-versions

test-page: ## test the page in a headless Chromium
	@GO=$(GO) scripts/test-page

lint: $(CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION) ## run the linters
	$(CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION) run --allow-parallel-runners ./...
	cd bench && ../$< run --allow-parallel-runners ./...

$(CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION):
	mkdir -p $(CACHE)/bin
	GOBIN=$(abspath $(CACHE)/bin) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(CACHE)/bin/golangci-lint $@

fuzz: ## run every fuzz target for FUZZTIME (20s)
	FUZZTIME=$(FUZZTIME) scripts/fuzz

bench: ## run the benchmarks beside their floor
	cd bench && $(GO) run ./cmd/zkbench

bench-lb: setup ## measure load balancers while members come and go (LB_CHANGES=50)
	@GO=$(GO) scripts/bench-lb

demo: build ## see it work: embedded ZooKeeper, a member, nginx upstreams (DEMO_SECONDS=20 ends it)
	@scripts/demo

gen: ## regenerate the reference pages
	$(GO) generate ./...

package: ## build the release into dist/: binaries, .deb, .rpm, SBOM, checksums
	@scripts/package

test-systemd: ## test the package and the unit in a real systemd (root)
	@scripts/test-systemd

test-clean: ## paste the quick start into a Debian that has nothing but make and Go (root)
	@GO=$(GO) scripts/test-clean

prepare: setup ## install and download what test-systemd and test-page need, too
	@scripts/test-systemd --prepare
	@scripts/test-page --prepare

clean: ## remove what was built
	rm -rf $(BIN) dist
