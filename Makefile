# The Go toolchain does the work; targets only name it. docs/install.md lists what each needs.
FUZZTIME ?= 10s
export CGO_ENABLED = 0
export FUZZTIME

.PHONY: build run test test-rest test-all churn test-slurm test-slurm-long test-clients bench-clients test-engines test-lustre test-lustre-long test-gpu gpu-kit package tools lint fuzz race points fmt bench generate clean
.NOTPARALLEL:

build: ## bin/cascaded, bin/cascade, its instruments bin/cascade-bench, and bin/cascade-gpu, which has the CUDA driver
	go build -trimpath -o bin/ ./cmd/cascaded ./cmd/cascade ./cmd/cascade-bench ./cmd/cascade-gpu

run: build ## four ranks, one trace, one table; TRACE=file chooses the trace
	scripts/run.sh "$(TRACE)"

test: ## build, vet and the tests that prove the product in minutes; a line for each stage
	scripts/test.sh quick

test-rest: build ## what test leaves out: race detector, fuzzing, crash points, clients, Lustre, engines, other architectures
	scripts/test.sh rest

test-all: ## everything
	scripts/test.sh quick rest

churn: build ## four ranks that are killed under clients that change everything, against a model: FOR=10m, SEED=n, DISKS=1 below their memory
	CASCADE_E2E_BIN=$(CURDIR)/bin CASCADE_E2E_CHURN=$(or $(FOR),10m) CASCADE_E2E_SEED=$(SEED) CASCADE_E2E_DISKS=$(DISKS) go test -count=1 -v -timeout 0 -run '^TestChurn$$' ./internal/testing/e2e

test-slurm: tools ## cascade launch in batch jobs of a real Slurm with several nodes on this machine, as root; minutes, and more the first time
	go test -count=1 -v -timeout 30m -run '^Test(Launch|Prolog)' ./internal/testing/e2e
	go test -count=1 ./slurm/...

test-slurm-long: tools ## jobs that end at many random moments, half an hour
	CASCADE_SLURM_LONG=1 go test -count=1 -v -timeout 120m -run '^TestLaunchEndsAnyhow$$' ./internal/testing/e2e

tools race fuzz points: ## single stages of these
	scripts/test.sh $@

lint: ## vet, formatting, staticcheck; the rules of the tree are internal/lint's tests
	scripts/test.sh vet staticcheck

test-clients: build tools ## the Python client on ranks that are killed, stopped and started again
	scripts/test-clients

bench-clients: build tools ## the Python client beside redis-py and other stores, into JSON=file
	scripts/test-clients bench "$(or $(JSON),build/clients.json)"

test-engines: build tools ## the real SGLang, vLLM and LMCache on a rank; installs them outside the clone, minutes each the first time
	scripts/test-engines || [ $$? -eq 77 ] # 77: it named what is missing

test-lustre: tools ## the Lustre tier on a real Lustre, in guests; CASCADE_SHARED names the folder that has them
	scripts/test-lustre

test-lustre-long: tools ## the same with hundreds of power cuts, an hour
	scripts/test-lustre --long

package: ## build/package: DEB, RPM and tarball; ARCH="amd64 arm64" for both. nfpm comes from the Go module proxy
	scripts/package.sh $(ARCH)

test-gpu: ## what calls the CUDA driver, on a stand-in and on the GPU of this machine; without one those tests skip and name it
	CGO_ENABLED=1 go run ./cmd/cascade-gpu probe
	go test -count=1 -v ./gpu/cuda ./gpu/hbm ./cmd/cascade-gpu/...
	CGO_ENABLED=1 go test -count=1 -v ./gpu/nvml

gpu-kit: ## bin/gpu-kit, a folder to take to a machine with a GPU; docs/gpu.md says what its run checks
	rm -rf bin/gpu-kit && mkdir -p bin/gpu-kit/python
	cp gpu/kit/* bin/gpu-kit/ && cp -r clients/python/cascade_kv clients/python/engines bin/gpu-kit/python/
	find bin/gpu-kit/python '(' -name __pycache__ -o -name '_fast*.so' ')' -prune -exec rm -r {} +
	go build -trimpath -ldflags="-s -w" -o bin/gpu-kit/ ./cmd/cascaded
	CGO_ENABLED=0 go test -c -trimpath -ldflags="-s -w" -o bin/gpu-kit/gio.test ./gpu/gio && cp gpu/gio/ptx/kernel.ptx bin/gpu-kit/gio.ptx
	cc -O2 -Wall -Wextra -shared -fPIC gpu/kit/kit.c -o bin/gpu-kit/libkit.so -ldl -lpthread
	cc -O2 -Wall -Wextra -shared -fPIC gpu/kit/fakecuda.c -o bin/gpu-kit/libfakecuda.so -lpthread

fmt:
	gofmt -w .

bench: build
	bin/cascade bench resp --json
	bin/cascade bench put --json
	bin/cascade bench fabric --mpi none --json

generate: ## data that programs compute; internal/lint reports what is not current
	go generate ./...

clean:
	rm -rf bin build
