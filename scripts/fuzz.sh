#!/usr/bin/env bash
# Run every fuzz target of the tree for the given time: fuzz.sh 10s [folder...]
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
time=$1
shift

# The fuzzing engine may report the end of its own time as the target's failure; a crash leaves a failing input.
only_out_of_time() {
    grep -q 'context deadline exceeded' build/fuzz.log && ! grep -qE 'Failing input|panic|fatal error' build/fuzz.log
}

grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' "${@:-.}" | sort | while IFS=: read -r file target; do
    package=./$(dirname "${file#./}") target=${target#func }
    echo "fuzz $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "$package" >build/fuzz.log 2>&1 </dev/null ||
        only_out_of_time || { cat build/fuzz.log; exit 1; }
done
