#!/usr/bin/env bash
# make run: start four ranks that are one cache, replay a trace through all of them, print the table, stop the ranks.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=4
mkdir -p build
work=$(mktemp -d)
arenas=/dev/shm/$(basename "$work")
pids=()
cleanup() {
    [ ${#pids[@]} -eq 0 ] || { kill "${pids[@]}"; wait "${pids[@]}"; } 2>/dev/null || true
    rm -rf "$work" "$arenas".*
}
trap cleanup EXIT

trace=${1:-}
if [ -z "$trace" ]; then
    trace=build/synth.jsonl.gz
    bin/cascade trace synth --requests 1000 -o "$trace"
elif [ ! -r "$trace" ]; then
    echo "cannot read TRACE=$trace" >&2
    exit 2
fi

(umask 077 && head -c 32 /dev/urandom | base64 >"$work/secret")

# start RANK SEEDS: returns when the rank serves.
start() {
    bin/cascaded --rank "$1" --socket "$work/rank$1.sock" --shm-bytes 128MiB --shm-path "$arenas.$1" --lustre-dir "$work/lustre" \
        --peers-fabric tcp --peers-listen 127.0.0.1:0 --peers-gossip 127.0.0.1:0 --peers-seeds "$2" \
        --peers-secret-file "$work/secret" 2>"$work/log$1" &
    pids+=($!)
    for _ in $(seq 100); do
        bin/cascade status --socket "$work/rank$1.sock" >/dev/null 2>&1 && return
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    echo "rank $1 does not start:" >&2
    cat "$work/log$1" >&2
    return 1
}

start 0 ""
seed=$(sed -n 's/.*msg=joined .*gossip=\([^ ]*\).*/\1/p' "$work/log0")
sockets=$work/rank0.sock
for i in $(seq $((ranks - 1))); do
    start "$i" "$seed"
    sockets+=,$work/rank$i.sock
done
# Each has joined when it serves; the last one is known to the first a moment later.
for _ in $(seq 100); do
    [ "$(bin/cascade status --socket "$work/rank0.sock" --json | grep -c '"state": "alive"')" -eq "$ranks" ] && break
    sleep 0.1
done

bin/cascade trace replay --sockets "$sockets" --workers "$ranks" --trace "$trace" --block-bytes 256KiB --html build/report.html
bin/cascade status --socket "$work/rank0.sock"
kill -TERM "${pids[@]}"
for pid in "${pids[@]}"; do wait "$pid"; done
pids=()
grep -hE 'level=(WARN|ERROR)' "$work"/log* | grep -v 'msg="gossip:' >&2 || true # gossip complains of ranks that end
echo "report: $PWD/build/report.html"
