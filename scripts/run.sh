#!/usr/bin/env bash
# make run: start a rank, replay a trace against it, print the table, stop the rank.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
work=$(mktemp -d)
arena=/dev/shm/$(basename "$work").arena
rank=
cleanup() {
    [ -z "$rank" ] || { kill "$rank" && wait "$rank"; } 2>/dev/null || true
    rm -rf "$work" "$arena"
}
trap cleanup EXIT

trace=${1:-../shared/traces/mooncake_conversation_trace.jsonl.gz}
if [ ! -r "$trace" ]; then
    [ -z "${1:-}" ] || { echo "cannot read TRACE=$1" >&2; exit 2; }
    trace=build/synth.jsonl.gz
    bin/cascade trace synth -o "$trace"
fi

socket=$work/rank.sock
bin/cascaded --socket "$socket" --shm-bytes 128MiB --shm-path "$arena" \
    --lustre-dir "$work" --log-level warn &
rank=$!
for _ in $(seq 100); do
    bin/cascade status --socket "$socket" >/dev/null 2>&1 && break
    kill -0 "$rank" || exit 1
    sleep 0.1
done
bin/cascade trace replay --socket "$socket" --trace "$trace" --block-bytes 4KiB --html build/report.html
bin/cascade status --socket "$socket"
kill -TERM "$rank"
wait "$rank"
rank=
echo "report: $PWD/build/report.html"
