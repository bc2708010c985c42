#!/usr/bin/env bash
# Run every fuzz target of the tree for the given time: fuzz.sh 10s [folder...]. Each package's binary is built once.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/fuzz
time=$1
shift
top=$PWD
cache=$(go env GOCACHE)/fuzz

# The fuzzing engine may report the end of its own time as the target's failure; a crash leaves a failing input.
only_out_of_time() {
    grep -q 'context deadline exceeded' "$1" && ! grep -qE 'Failing input|panic|fatal error' "$1"
}

grep -rlE --include='*_test.go' '^func Fuzz' "${@:-.}" | xargs -n1 dirname | sort -u | while read -r folder; do
    binary=$top/build/fuzz/$(tr / _ <<<"${folder#./}").test
    targets=$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' "$folder"/*_test.go | sort)
    go test -c -fuzz . -o "$binary" "./${folder#./}" </dev/null
    package=$(go list "./${folder#./}")
    for target in $targets; do
        echo "fuzz $package $target"
        log=$top/build/fuzz/log
        (cd "$folder" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x \
            -test.fuzzcachedir "$cache/$package") >"$log" 2>&1 </dev/null || only_out_of_time "$log" || { cat "$log"; exit 1; }
    done
    rm "$binary"
done
