#!/usr/bin/env bash
# Build with the tag mpi against one MPI of the distribution: scripts/mpi-build.sh openmpi|mpich OUT PACKAGE...
# "test OUT PACKAGE" in place of "OUT PACKAGE" builds the package's test program.
set -euo pipefail
mpi=${1:-} ; shift || true
case $mpi in
openmpi)
    CGO_CFLAGS="$(pkg-config --cflags ompi-c)"
    CGO_LDFLAGS="$(pkg-config --libs-only-L ompi-c)"
    ;;
mpich)
    # gompi names Open MPI's library after these: --as-needed drops it, because nothing is left that it could resolve.
    CGO_CFLAGS="$(pkg-config --cflags mpich)"
    CGO_LDFLAGS="-L/usr/lib/x86_64-linux-gnu -lmpich"
    ;;
*)
    echo "usage: scripts/mpi-build.sh openmpi|mpich [test] OUT PACKAGE..." >&2
    exit 2
    ;;
esac
# Go's cache does not see that mpi.h changed: each MPI has one of its own.
GOCACHE=${XDG_CACHE_HOME:-$HOME/.cache}/cascade/mpi/$mpi
export CGO_CFLAGS CGO_LDFLAGS GOCACHE CGO_ENABLED=1
if [ "${1:-}" = test ]; then
    shift
    exec go test -c -tags mpi -o "$@"
fi
exec go build -tags mpi -o "$@"
