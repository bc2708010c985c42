#!/bin/sh
# TaskProlog=/etc/slurm/cascade-taskprolog.sh   in slurm.conf; docs/slurm.md, Ranks by a constraint
# Gives batch scripts and tasks of a job the socket of the rank that cascade-prolog.sh started on their node, if any.
run=/run/cascade-jobs # as in cascade-prolog.sh
# A task of a heterogeneous job has the first component's number, and the prolog made this node's by that of its own. A job
# that was submitted by such a job has the numbers too, but none of its own among them.
components=
[ "$SLURM_JOB_ID" != "$SLURM_JOB_ID_HET_GROUP_0" ] || components=$(env | sed -n 's/^SLURM_JOB_ID_HET_GROUP_[0-9]*=\([0-9]*\)$/\1/p')
for job in $SLURM_JOB_ID $components; do
    socket=$run/job$job/rank.sock
    [ ! -S "$socket" ] || { echo "export CASCADE_SOCKET=$socket" && break; }
done
