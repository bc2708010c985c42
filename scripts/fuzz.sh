#!/usr/bin/env bash
# Run every fuzz target of the tree for the given time: fuzz.sh 10s [package...]
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
time=$1
shift
# go test -list prints the targets of a package, then "ok <package> <time>".
go test -list '^Fuzz' "${@:-./...}" | awk '/^Fuzz/ {t[n++] = $1} /^ok/ {for (i = 0; i < n; i++) print $2, t[i]; n = 0}' |
    while read -r package target; do
        echo "fuzz $package $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" >build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
    done
