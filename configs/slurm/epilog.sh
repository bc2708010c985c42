#!/bin/sh
# Epilog=/etc/slurm/cascade-epilog.sh   in slurm.conf; docs/slurm.md, For the site
# Ends ranks that outlived the job and removes what they left: arenas in /dev/shm, sockets, a launcher's secret, and
# what cascade-prolog.sh made. It touches nothing that is not the job's and its user's, is over within $drain and half
# a minute whatever happens, and its status is always 0: it can never drain a node.
cascade=/usr/bin/cascade
run=/run/cascade-jobs # as in cascade-prolog.sh
drain=30              # seconds that ranks which live may take to write to lustre what only they have
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >/dev/null 2>&1
case ${SLURM_JOB_ID:-x}${SLURM_JOB_UID:-x} in *[!0-9]*) exit 0 ;; esac
cd / || exit 0
clean() {
    timeout --kill-after=5 $((drain + 20)) "$cascade" arena rm --job "$SLURM_JOB_ID" --user "$SLURM_JOB_UID" --drain ${drain}s --wait 15s
    dir=$run/job$SLURM_JOB_ID # the user's own, in a directory of root
    [ -d "$dir" ] || return
    timeout --kill-after=1 5 setpriv --reuid="$SLURM_JOB_UID" --regid=65534 --clear-groups -- find "$dir" -xdev -mindepth 1 -delete
    rmdir "$dir"
}
clean &
n=0 # should even SIGKILL not end it: slurmd is not made to wait
while kill -0 $! && [ $n -lt $(((drain + 30) * 10)) ]; do
    sleep 0.1
    n=$((n + 1))
done
exit 0
