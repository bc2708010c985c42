# The Go toolchain does the work; targets only name it. docs/install.md lists what each needs.
CC_FOUND := $(shell command -v gcc || command -v clang)
RACE     := $(if $(CC_FOUND),-race)
FUZZTIME ?= 10s
export CGO_ENABLED = 0

.PHONY: build run test test-engines tools race fuzz lint fmt bench generate clean

build: ## bin/cascaded and bin/cascade
	go build -trimpath -o bin/ ./cmd/cascaded ./cmd/cascade

run: build ## one rank, one trace, one table; TRACE=file chooses the trace
	scripts/run.sh "$(TRACE)"

test: tools lint race fuzz ## everything that needs no Python package of an engine

test-engines: build tools ## the real LMCache on a rank; installs it outside the clone, minutes the first time
	ENGINES=1 go test -count=1 -timeout 60m -run Engine ./...

tools: ## what tests drive besides Go
	scripts/tools.sh

race: ## all tests, with the race detector where there is a C compiler
	CGO_ENABLED=$(if $(RACE),1,0) go test $(RACE) -timeout 20m ./...

fuzz: ## each fuzz target for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

lint: ## vet, staticcheck, formatting; the rules of the tree are internal/lint's tests
	go vet ./...
	go tool staticcheck ./...
	@test -z "$$(gofmt -l .)" || { echo "make fmt would change:"; gofmt -l .; exit 1; }

fmt:
	gofmt -w .

bench: build
	bin/cascade bench resp --json
	bin/cascade bench put --json

generate:
	go generate ./...

clean:
	rm -rf bin build
