#!/usr/bin/env bash
# Install what the tests drive besides Go. What cannot be installed is named, and the tests that need it skip (with
# CI=true: fail).
set -euo pipefail
mypy=2.4.1     # scripts/test-clients reads this line
redis_py=8.1.0 # the current one; the distribution's python3-redis is the old one. internal/testing/e2e reads this line

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v redis-cli >/dev/null || missing+=(redis-tools)
/usr/bin/python3 -c 'import redis' 2>/dev/null || missing+=(python3-redis)
python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null || missing+=(python3-numpy)
command -v ip >/dev/null || missing+=(iproute2)
command -v iperf3 >/dev/null || missing+=(iperf3)
command -v nft >/dev/null || missing+=(nftables)
command -v zstd >/dev/null || missing+=(zstd)
command -v fio >/dev/null || missing+=(fio)
command -v man >/dev/null || missing+=(man-db)
command -v groff >/dev/null || missing+=(groff-base)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
command -v mpicc.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin libopenmpi-dev)
command -v mpicc.mpich >/dev/null && command -v mpiexec.mpich >/dev/null || missing+=(mpich libmpich-dev)
command -v pkg-config >/dev/null || missing+=(pkg-config)
[ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && [ -x /usr/sbin/munged ] && command -v srun >/dev/null ||
    missing+=(slurm-wlm slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null ||
            echo "tools: not installed: ${missing[*]}" >&2
    else
        echo "tools: to install what tests need: sudo apt-get install ${missing[*]}" >&2
    fi
fi

# The one version whose PTX is checked in, apart: a distribution without it has the rest.
ptx=$(dirname "$0")/clang-ptx
if ! "$ptx" --have; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        "$ptx" --install >/dev/null || echo "tools: not installed: the clang of $ptx" >&2
    else
        echo "tools: to install what tests need: sudo $ptx --install" >&2
    fi
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/cascade
parts=()
trap 'rm -rf "${parts[@]}"' EXIT

# environment NAME PACKAGE…: a virtual environment outside the clone.
environment() {
    local home=$cache/$1 part
    [ -d "$home" ] && return
    mkdir -p "$cache"
    # Made aside and renamed when complete: only bin/python is used, which finds its environment wherever it lies.
    part=$(mktemp -d "$home.XXXXXX")
    parts+=("$part")
    if python3 -m venv "$part" >&2 && "$part/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}" >&2; then
        mv -T "$part" "$home" 2>/dev/null || [ -d "$home" ] # another run may have been first
    else
        echo "tools: $1 cannot be installed; to try again: make tools" >&2
    fi
}

environment "redis-py-$redis_py" "redis==$redis_py"
environment "mypy-$mypy" "mypy==$mypy" numpy
