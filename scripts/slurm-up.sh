#!/usr/bin/env bash
# Start a Slurm cluster on this machine for tests: scripts/slurm-up.sh DIR NODES [OWNER]; lines in SLURM_UP_CONF go into its slurm.conf
# munge, slurmctld and one slurmd per node n0, n1, …, all with files in DIR, which it makes, and on ports of their own:
# beside another Slurm it is no trouble. Then SLURM_CONF=DIR/slurm.conf srun … runs on it. scripts/slurm-down.sh DIR
# stops it, also by itself when the process OWNER ends. For root: slurmd starts tasks as their users.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: scripts/slurm-up.sh DIR NODES [OWNER]" >&2; exit 2; }
mkdir -m 0755 -p "$1"
dir=$(realpath "$1") nodes=$2 owner=${3:-}
down=$(dirname "$(realpath "$0")")/slurm-down.sh
PATH=$PATH:/usr/sbin
mkdir "$dir/state"
[ ${#dir} -le 60 ] || { echo "slurm-up: $dir is too long a name for the sockets in it" >&2; exit 2; }

# Below the ports that the kernel hands out, and answered by nobody.
port=$((20000 + RANDOM % 10000))
free() {
    while port=$((port + 1)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# What it started, for slurm-down.sh: name, pid, and the start time that tells it from a later process of that pid.
note() { echo "$1 $2 $(cut -d' ' -f22 "/proc/$2/stat")" >>"$dir/pids"; }
soon() { # soon COMMAND...: until it succeeds
    for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    echo "slurm-up: not within 30 s: $*" >&2
    tail -n 20 "$dir"/*.log >&2
    return 1
}
trap '[ $? -eq 0 ] || "$down" "$dir"' EXIT

# Root's own munged: the system's, if it runs, is another.
(umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
munged --force --key-file="$dir/munge.key" --socket="$dir/munge.sock" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" >>"$dir/munged.log" 2>&1
soon test -s "$dir/munged.pid"
note munged "$(cat "$dir/munged.pid")"

host=$(hostname -s)
port=$(free)
cat >"$dir/slurm.conf" <<CONF
ClusterName=cascade
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
StateSaveLocation=$dir/state
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmdLogFile=$dir/slurmd.%n.log
SlurmdSpoolDir=$dir/spool.%n
# pmix has a folder here for each job, and each node needs another
TmpFS=$dir/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# all nodes claim the CPUs of this one
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
KillOnBadExit=0
SlurmctldTimeout=60
SlurmdTimeout=60
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
CONF
for i in $(seq 0 $((nodes - 1))); do
    mkdir -p "$dir/spool.n$i" "$dir/tmp.n$i"
    port=$(free)
    echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=4 RealMemory=1000 State=UNKNOWN"
done >>"$dir/slurm.conf"
echo "PartitionName=debug Nodes=n[0-$((nodes - 1))] Default=YES MaxTime=INFINITE State=UP" >>"$dir/slurm.conf"

echo "${SLURM_UP_CONF:-}" >>"$dir/slurm.conf"

export SLURM_CONF=$dir/slurm.conf
slurmctld -c >>"$dir/slurmctld.log" 2>&1
soon test -s "$dir/slurmctld.pid"
note slurmctld "$(cat "$dir/slurmctld.pid")"
for i in $(seq 0 $((nodes - 1))); do
    slurmd -N "n$i" >>"$dir/slurmd.n$i.log" 2>&1
    soon test -s "$dir/slurmd.n$i.pid"
    note slurmd "$(cat "$dir/slurmd.n$i.pid")"
done
idle() { [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" -eq "$nodes" ]; }
soon idle
if [ -n "$owner" ]; then
    setsid bash -c 'tail --pid="$1" -f /dev/null; exec "$2" "$3"' watch "$owner" "$down" "$dir" </dev/null >/dev/null 2>&1 &
    note bash $!
fi
