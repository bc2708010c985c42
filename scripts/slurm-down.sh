#!/usr/bin/env bash
# Stop what scripts/slurm-up.sh DIR started, and its jobs; the files in DIR stay. Nothing else is touched: a process
# is stopped only if its name and start time are those that were noted.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: scripts/slurm-down.sh DIR" >&2; exit 2; }
dir=$(realpath "$1")
PATH=$PATH:/usr/sbin
[ -f "$dir/pids" ] || exit 0
export SLURM_CONF=$dir/slurm.conf

is() { # is NAME PID START: runs, and is the one that was noted
    [ "$(cat "/proc/$2/comm" 2>/dev/null)" = "$1" ] && [ "$(cut -d' ' -f22 "/proc/$2/stat" 2>/dev/null)" = "$3" ]
}

if [ -f "$SLURM_CONF" ] && jobs=$(timeout 10 squeue -h -o %A 2>/dev/null) && [ -n "$jobs" ]; then
    # Slurm's own way to end tasks: a slurmd that is stopped leaves them behind.
    timeout 10 scancel --signal=KILL $jobs 2>/dev/null || true
    timeout 10 scancel $jobs 2>/dev/null || true
    for _ in $(seq 100); do [ -n "$(timeout 10 squeue -h -o %A 2>/dev/null)" ] || break; sleep 0.1; done
fi
status=0
while read -r name pid start; do # the last one first: munged serves the others
    is "$name" "$pid" "$start" || continue
    [ "$pid" = "$$" ] || [ "$pid" = "$PPID" ] || kill "$pid" 2>/dev/null || true
    for _ in $(seq 150); do is "$name" "$pid" "$start" || continue 2; sleep 0.1; done
    [ "$pid" = "$$" ] && continue
    echo "slurm-down: $name $pid does not end" >&2
    status=1
done < <(tac "$dir/pids")
exit $status
