# The Go toolchain does the work; targets only name it. docs/install.md lists what each needs.
CC_FOUND := $(shell command -v "$$(CGO_ENABLED=1 go env CC)")
RACE     := $(if $(CC_FOUND),-race)
FUZZTIME ?= 10s
export CGO_ENABLED = 0

.PHONY: build run test points test-clients bench-clients test-engines test-lustre test-lustre-long tools lint bare fuzz race fmt bench generate clean
.NOTPARALLEL:

build: ## bin/cascaded, bin/cascade, and its instruments bin/cascade-bench
	go build -trimpath -o bin/ ./cmd/cascaded ./cmd/cascade ./cmd/cascade-bench

run: build ## four ranks, one trace, one table; TRACE=file chooses the trace
	scripts/run.sh "$(TRACE)"

test: tools lint bare fuzz race test-clients points test-lustre ## everything that needs no Python package of an engine

test-clients: build tools ## the Python client on ranks that are killed, stopped and started again
	scripts/test-clients

bench-clients: build tools ## the Python client beside redis-py and other stores, into JSON=file
	scripts/test-clients bench "$(or $(JSON),build/clients.json)"

test-engines: build tools ## the real SGLang, vLLM and LMCache on a rank; installs them outside the clone, minutes each the first time
	scripts/test-engines || [ $$? -eq 77 ] # 77: it said what is missing

test-lustre: tools ## the Lustre tier on a real Lustre, in guests; where ../shared/lustre is
	scripts/test-lustre

test-lustre-long: tools ## the same with hundreds of power cuts, an hour
	scripts/test-lustre --long

tools: ## what tests drive besides Go
	scripts/tools.sh

lint: ## vet, staticcheck, formatting; the rules of the tree are internal/lint's tests
	go vet ./...
	go tool staticcheck ./...
	@test -z "$$(gofmt -l .)" || { echo "make fmt would change:"; gofmt -l .; exit 1; }

bare: ## builds without a C compiler, for both architectures
	GOARCH=amd64 go build ./...
	GOARCH=arm64 go build ./...
	GOARCH=arm64 go vet ./...

fuzz: ## each fuzz target for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

race: ## all tests, with the race detector where there is a C compiler
	CGO_ENABLED=$(if $(RACE),1,0) go test $(RACE) -timeout 20m ./...

points: ## each crash, fault and flip that the race run takes a part of
	CGO_ENABLED=0 go test -count=1 -timeout 20m -run 'Crash|Fault|PowerCut|Silent' ./lustre/segment

fmt:
	gofmt -w .

bench: build
	bin/cascade bench resp --json
	bin/cascade bench put --json
	bin/cascade bench fabric --mpi none --json

generate: ## data that programs compute; internal/lint tells what is not current
	go generate ./...

clean:
	rm -rf bin build
