#!/bin/sh
# Prolog=/etc/slurm/cascade-prolog.sh and PrologFlags=Alloc   in slurm.conf; docs/slurm.md, Ranks by a constraint
# Starts a rank on each node of a job with --constraint=cascade, as the job's user, before the job starts. It holds the
# job up for $wait and some seconds at most, and its status is always 0: it can never drain a node. Without a rank the
# job runs all the same.
feature=cascade
cascaded=/usr/bin/cascaded
config=/etc/cascade/job.toml # of these ranks: lustre.dir, shm.bytes, peers.advertise
key=/etc/cascade/job.key     # root's alone, the same on all nodes: head -c 32 /dev/urandom | base64
run=/run/cascade-jobs        # not below /tmp, which job_container/tmpfs hides from the job
host='%s'                    # how nodes reach the one of that name, such as %s-hsn0
ports=20000                  # of the first node, for TCP and UDP: one of ten thousand from here
wait=10                      # seconds for the rank to be there
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
exec </dev/null >/dev/null 2>&1
case ${SLURM_JOB_ID:-x}${SLURM_JOB_UID:-x} in *[!0-9]*) exit 0 ;; esac
case ",$(printf %s "$SLURM_JOB_CONSTRAINTS" | tr -c 'A-Za-z0-9_.-' ,)," in *",$feature,"*) ;; *) exit 0 ;; esac
cd / || exit 0

as_user() { # as_user COMMAND...: with the user's rights and a clean environment
    env -i PATH="$PATH" HOME="${home:-/}" USER="$user" LOGNAME="$user" SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_NODELIST="$list" SLURMD_NODENAME="$SLURMD_NODENAME" \
        setpriv --reuid="$SLURM_JOB_UID" --regid="$group" --init-groups --no-new-privs -- "$@"
}

start() {
    list=${SLURM_JOB_NODELIST:-$SLURM_NODELIST}
    rank=0 first='' found=''
    for node in $(timeout 5 scontrol show hostnames "$list"); do
        first=${first:-$node}
        [ "$node" != "$SLURMD_NODENAME" ] || { found=1 && break; }
        rank=$((rank + 1))
    done
    [ -n "$found" ] || return
    IFS=: read -r user _ _ group _ home _ <<EOF
$(timeout 5 getent passwd "$SLURM_JOB_UID")
EOF
    [ -n "$user" ] || return

    # All nodes of the job come to the same secret, and nobody without the key does.
    case $(stat -c %u:%a "$key") in 0:400 | 0:600) ;; *) return ;; esac
    [ "$(stat -c %s "$key")" -ge 32 ] || return
    secret=$({ cat "$key" && echo "job $SLURM_JOB_ID of user $SLURM_JOB_UID" && cat "$key"; } | sha256sum | cut -c1-64)

    port=$((ports + SLURM_JOB_ID % 10000)) dir=$run/job$SLURM_JOB_ID
    mkdir -p -m 0755 "$run" && install -d -m 0700 -o "$SLURM_JOB_UID" -g "$group" "$dir" || return
    printf '%s\n' "$secret" | as_user sh -c 'umask 077 && cd "$1" && rm -f secret rank.log && cat >secret' sh "$dir" || return
    set -- "$cascaded" --config "$config" --rank "$rank" --job "$SLURM_JOB_ID" --socket "$dir/rank.sock" \
        --peers-fabric tcp --peers-secret-file "$dir/secret" --peers-seeds "$(printf "$host" "$first"):$port"
    [ "$rank" != 0 ] || set -- "$@" --peers-gossip ":$port"
    ulimit -n 65536
    ulimit -l unlimited
    # In a session of its own: slurmd ends the prolog's group.
    as_user setsid sh -c 'cd "$1" && shift && exec "$@" >rank.log 2>&1' sh "$dir" "$@" &
    n=0
    until [ -S "$dir/rank.sock" ] || [ $n -ge $((wait * 10)) ]; do
        sleep 0.1
        n=$((n + 1))
    done
}
start &
n=0 # should something hang in it: slurmd is not made to wait
while kill -0 $! && [ $n -lt $(((wait + 20) * 10)) ]; do
    sleep 0.1
    n=$((n + 1))
done
[ $n -lt $(((wait + 20) * 10)) ] || kill -KILL $!
exit 0
