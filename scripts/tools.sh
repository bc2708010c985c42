#!/usr/bin/env bash
# Install what the tests drive besides Go; without root, print the command.
set -euo pipefail
missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v redis-cli >/dev/null || missing+=(redis-tools)
python3 -c 'import redis' 2>/dev/null || missing+=(python3-redis)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
    echo "tests that need them skip (with CI=true: fail); to install: sudo apt-get install ${missing[*]}" >&2
fi
