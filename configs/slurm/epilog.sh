#!/bin/sh
# Epilog=/etc/slurm/cascade-epilog.sh   in slurm.conf; docs/slurm.md, For the site
# Kills ranks that outlived the job and removes the arenas that they left in /dev/shm. It touches nothing that is
# not the job's and its user's, is over within half a minute whatever happens, and its status is always 0: it can
# never drain a node.
cascade=/usr/bin/cascade
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >/dev/null 2>&1
case ${SLURM_JOB_ID:-x}${SLURM_JOB_UID:-x} in *[!0-9]*) exit 0 ;; esac
cd / || exit 0
timeout --kill-after=5 20 "$cascade" arena rm --job "$SLURM_JOB_ID" --user "$SLURM_JOB_UID" --wait 15s &
n=0 # should even SIGKILL not end it: slurmd is not made to wait
while kill -0 $! && [ $n -lt 300 ]; do
    sleep 0.1
    n=$((n + 1))
done
exit 0
