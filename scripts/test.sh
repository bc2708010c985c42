#!/usr/bin/env bash
# The stages of the tests, each with a line that says what it was, how long it took and what it skipped and why:
#
#     scripts/test.sh quick    what proves the product in minutes: make test
#     scripts/test.sh rest     everything else
#     scripts/test.sh STAGE…   single stages, by the names below
#
# The whole output of a stage is in build/test/STAGE.log. All stages run, also after one that fails.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
logs=build/test
mkdir -p "$logs"

# +NAME starts a lane: stages that run one after the other beside what follows, at a nice value. Their lines come last.
quick=(tools build +ranks vet unit client)
rest=(+waiting +idle race points clients package engines)

# ranks and guests mostly wait, and so do downloads. idle are stages that measure neither time nor load: they get what
# processor time nobody else wants.
declare -A lanes=(
    [ranks]="0 e2e"
    [waiting]="0 environments e2e-all lustre invariants"
    [idle]="19 staticcheck bare fuzz"
)

what() {
    case $1 in
    tools) echo "the programs that tests drive are installed" ;;
    build) echo "the programs" ;;
    vet) echo "go vet, and gofmt" ;;
    unit) echo "the tests of all packages, without those that testing.Short leaves out" ;;
    e2e) echo "real ranks, sockets, signals and files, without what testing.Short leaves out" ;;
    e2e-all) echo "the same with all of it: real Slurm, MPI, replays" ;;
    client) echo "the Python client, without what kills ranks" ;;
    staticcheck) echo "go tool staticcheck" ;;
    bare) echo "builds without a C compiler, for amd64 and arm64" ;;
    race) echo "all tests of packages, with the race detector where there is a C compiler, faults of loads among them" ;;
    invariants) echo "all tests of the store and its policies, with the order of locks asserted" ;;
    points) echo "each crash, fault and flip of lustre/segment; the race detector takes a part of them" ;;
    fuzz) echo "each fuzz target for ${FUZZTIME:=10s}" ;;
    clients) echo "the Python client on ranks that are killed, stopped and started again; mypy" ;;
    package) echo "DEB, RPM and tarball: made twice, installed, started and removed; what makes man pages" ;;
    lustre) echo "the lustre tier on a real Lustre, in guests" ;;
    environments) echo "the engines are installed" ;;
    engines) echo "the real SGLang, vLLM and LMCache on a rank, also while steps of loads fail" ;;
    *) return 1 ;;
    esac
}

run() {
    case $1 in
    tools) scripts/tools.sh ;;
    build) make build ;;
    vet) go vet ./... && go vet -tags faults $faulty && formatted ;;
    unit) go test -short -v -timeout 20m $(packages) ;;
    # What go test has cached of it does not depend on the programs: -count=1.
    e2e) CASCADE_E2E_BIN=$PWD/bin go test -short -count=1 -v -timeout 20m ./internal/testing/e2e ;;
    e2e-all) go test -count=1 -v -timeout 40m ./internal/testing/e2e ;; # it builds the programs, with each MPI too
    client) scripts/test-clients quick ;;
    staticcheck) go tool staticcheck ./... && go tool staticcheck -tags faults $faulty ;;
    bare) GOARCH=amd64 go build ./... && GOARCH=arm64 go build ./... && GOARCH=arm64 go vet ./... ;;
    race) race ;;
    invariants) go test -tags invariants -v -timeout 20m ./cascade/... ./internal/locks ;;
    points) go test -count=1 -v -timeout 20m -run 'Crash|Fault|PowerCut|Silent' ./lustre/segment ;;
    fuzz) scripts/fuzz.sh "${FUZZTIME:=10s}" ;;
    clients) scripts/test-clients ;;
    package) go vet -tags manual ./cmd/... && scripts/test-package ;;
    lustre) scripts/test-lustre ;;
    environments) engines --install ;;
    engines) engines --pairs 1 ;; # the ratios of more pairs want a quiet machine
    esac
}

# faulty are the packages with files of the tag faults, and the daemon made of them.
faulty="./internal/inject ./internal/server ./cascade ./cmd/cascaded"

# packages lists those whose tests are of Go alone.
packages() { go list ./... | grep -vE '/internal/testing/(e2e|packages)$'; }

formatted() {
    local list
    list=$(gofmt -l .) && [ -z "$list" ] && return
    echo "make fmt would change:" $list
    return 1
}

race() {
    local race=
    if command -v "$(CGO_ENABLED=1 go env CC)" >/dev/null; then
        export CGO_ENABLED=1 race=-race
    else
        echo "SKIP: race: no C compiler: the tests run without the race detector"
    fi
    local status=0
    # Policies and the rules of the tree have one goroutine: invariants and unit are for these.
    go test $race -v -timeout 30m $(packages | grep -vE "/(cascade/policy|internal/lint)$") || status=1
    go test $race -tags faults -run Faults -v -timeout 20m $faulty || status=1
    return $status
}

engines() {
    scripts/test-engines "$@"
    local status=$?
    [ $status -eq 77 ] || return $status # 77: what is missing was named
}

# skipped prints how many tests of a log were skipped, for each reason.
skipped() {
    awk '
        /^=== (RUN|CONT|NAME) / { test = $3; next }
        /^ +[a-zA-Z0-9_]+\.go:[0-9]+: / { line = $0; sub(/^ +[^ ]+ /, "", line); last[test] = line; next }
        / *--- SKIP: / { count[$3 in last ? last[$3] : "no reason given"]++; next }
        /skipped [\x27"]/ { line = $0; sub(/.*skipped [\x27"]/, "", line); sub(/[\x27"]$/, "", line); count[line]++; next }
        /SKIP: / { line = $0; sub(/.*SKIP: /, "", line); count[line]++ }
        END { for (r in count) printf "    skipped %d: %s\n", count[r], r }
    ' "$1" | sort
}

# logged prints what each failed test of a log, of those without a failed subtest, logged itself: its last 40 lines, the
# first 30 of a panic, and the first of each message before them; 80 at most.
logged() {
    awk '
        function flush(    i, k, n, name, kept) {
            for (i = 1; i <= fails; i++) {
                name = failed[i]
                if (name in above) continue
                n = 0
                for (k = 1; k <= lines[name]; k++)
                    if (k > lines[name] - 40 || line[name, k] ~ /^ +[a-zA-Z0-9_]+\.go:[0-9]+: / || panic[name] && k >= panic[name] && k < panic[name] + 30)
                        kept[++n] = line[name, k]
                print "    " name " logged" (lines[name] > 80 ? ", in " lines[name] " lines" : "") ":"
                for (k = n > 80 ? n - 79 : 1; k <= n; k++) print kept[k]
            }
            fails = 0; test = ""
            split("", failed); split("", above); split("", lines); split("", line); split("", panic)
        }
        /^=== (RUN|CONT|NAME|PAUSE) / { test = $3; next }
        /^ *--- (PASS|SKIP|FAIL): / {
            test = $3 # whose lines follow, without -v
            if ($2 != "FAIL:") next
            failed[++fails] = test
            for (up = test; sub(/\/[^\/]*$/, "", up);) above[up]
            next
        }
        /^(ok|FAIL|\?) *\t/ { flush(); next } # the end of a package
        /^(PASS|FAIL)$/ { next }
        /^panic: / { panic[test] = lines[test] + 1 }
        { line[test, ++lines[test]] = $0 }
        END { flush() }
    ' "$1"
}

# failures prints what a reader of a failed stage wants first.
failures() {
    grep -E '^[[:space:]]*--- FAIL|^FAIL|^panic:|^fatal error:|^(ERROR|FAIL):' "$1" | head -40
    if grep -qE '^[[:space:]]*--- FAIL: ' "$1"; then
        logged "$1" | head -200
        echo "    all of it is in $1"
    else
        echo "    the last lines of $1:"
        tail -30 "$1"
    fi
}

# timed runs a stage in a shell of its own, whose children are that stage's, and leaves their processor time in $2.
timed() (
    status=0
    run "$1" || status=$?
    times >"$2"
    exit $status
)

stage() {
    local name=$1 log=$logs/$1.log times=$logs/$1.times began=$SECONDS status=0 verdict=ok cpu
    timed "$name" "$times" >"$log" 2>&1 || status=$?
    [ $status -eq 0 ] || verdict=FAIL
    cpu=$(awk -F'[ ms]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$times")
    rm -f "$times"
    printf '%-4s %-11s %4d s, %4d s of CPU: %s\n' "$verdict" "$name" $((SECONDS - began)) "${cpu:-0}" "$(what "$name")"
    skipped "$log"
    [ $status -eq 0 ] || { failures "$log"; failed+=("$name"); }
}

# beside starts the stages of a lane, in a session of its own: where the kernel groups processes by sessions, the group has to
# be nice too.
beside() {
    local niceness names
    read -r niceness names <<<"${lanes[$1]}"
    setsid sh -c '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null; exec nice -n "$0" scripts/test.sh "$@"' "$niceness" $names >"$logs/lane.$1" 2>&1 </dev/null &
    started[$1]=$!
}

# collect waits for that lane, and prints what it printed.
collect() {
    local output=$logs/lane.$1 names=()
    wait "${started[$1]}" || { names=$(sed -n 's/^failed: //p' "$output"); failed+=(${names:-$1}); }
    unset "started[$1]"
    grep -vE '^(failed: |[0-9]+ stages in )' "$output"
    names=(${lanes[$1]})
    count=$((count + ${#names[@]} - 1))
}

stages=()
for name in "$@"; do
    case $name in
    quick) stages+=("${quick[@]}") ;;
    rest) stages+=("${rest[@]}") ;;
    *) what "$name" >/dev/null || { echo "test.sh: no stage $name" >&2; exit 2; }; stages+=("$name") ;;
    esac
done
failed=()
declare -A started=()
trap 'for lane in "${started[@]}"; do kill -- "-$lane"; done' EXIT
count=0
for name in "${stages[@]}"; do
    case $name in
    +*) beside "${name#+}" ;;
    *) stage "$name"; count=$((count + 1)) ;;
    esac
done
for name in ranks waiting idle; do
    [ -z "${started[$name]:-}" ] || collect "$name"
done
echo "$count stages in $SECONDS s"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
