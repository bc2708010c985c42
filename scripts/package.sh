#!/usr/bin/env bash
# Make a DEB, an RPM and a tarball of programs, all static but cascade-gpu, pages, completions, units and samples in build/package, for each
# architecture named (amd64, arm64; default: this one). Of one commit they are the same bytes wherever Go is the same.
# nfpm comes from the Go module proxy, pinned in scripts/nfpm.mod. It wants a clone: git has the version and the files.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 LC_ALL=C TZ=UTC
umask 022
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# The tag of this commit, or the nearest one before it (0.0.0 without any) and what tells this one apart; v1.2.3-rc.1 is
# 1.2.3~rc.1, which package managers sort before 1.2.3.
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || tag=v0.0.0
version=${tag#v}
version=${version/-/'~'}
if [ "$(git rev-parse -q --verify "$tag^{commit}")" != "$(git rev-parse HEAD)" ]; then
    version+=+$(git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h --abbrev=12)
fi
[ -z "$(git status --porcelain --untracked-files=no)" ] || version+=.modified
export PACKAGE_VERSION=$version

out=build/package
stage=$out/stage
share=$stage/usr/share/cascade-kv
doc=$stage/usr/share/doc/cascade-kv
programs=(cascaded cascade cascade-bench cascade-gpu)
rm -rf "$out"
mkdir -p "$out"

# What is made once for all architectures.
for p in "${programs[@]}"; do
    go build -tags manual -o "$out/tools/$p" "./cmd/$p"
done
"$out/tools/cascade" "$out/manual"
"$out/tools/cascade-bench" "$out/manual"
"$out/tools/cascade-gpu" "$out/manual"
"$out/tools/cascaded" "$out/manual" configs/cascade.toml

# tracked FOLDER TARGET PATH…: copy what git tracks of these paths below a folder.
tracked() {
    local folder=$1 target=$2
    mkdir -p "$target"
    git -C "$folder" ls-files -z -- "${@:3}" | tar -C "$folder" --null -T - -cf - | tar -C "$target" -xf -
}

# licences TARGET: those of the modules that the programs are linked of, and Go's.
licences() {
    local path version dir
    mkdir -p "$1/go"
    cp "$(go env GOROOT)/LICENSE" "$1/go/"
    go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "${programs[@]/#/./cmd/}" | sort -u |
        while read -r path version dir; do
            mkdir -p "$1/$path@$version"
            find "$dir" -maxdepth 1 -type f '(' -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' ')' -exec cp {} "$1/$path@$version/" ';'
            [ -n "$(ls "$1/$path@$version")" ] || { echo "package.sh: $path $version has no licence: its terms have to be in the package" >&2; return 1; }
        done
}

for arch in "${@:-$(go env GOHOSTARCH)}"; do
    case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "package.sh: $arch: amd64 and arm64 are supported" >&2; exit 2 ;;
    esac
    export GOARCH=$arch
    rm -rf "$stage"
    mkdir -p "$stage"/usr/{bin,lib/systemd/system,lib/sysusers.d} "$stage/etc/cascade" "$doc" "$share/python"
    go build -trimpath -buildvcs=auto -ldflags='-s -w' -o "$stage/usr/bin/" "${programs[@]/#/./cmd/}"

    for page in "$out"/manual/man/*; do
        mkdir -p "$stage/usr/share/man/man${page##*.}"
        gzip -9 -n <"$page" >"$stage/usr/share/man/man${page##*.}/${page##*/}.gz"
    done
    mkdir -p "$stage"/usr/share/{bash-completion,zsh,fish}
    cp -r "$out/manual/bash" "$stage/usr/share/bash-completion/completions"
    cp -r "$out/manual/zsh" "$stage/usr/share/zsh/site-functions"
    cp -r "$out/manual/fish" "$stage/usr/share/fish/vendor_completions.d"
    cp configs/systemd/cascaded.service "$stage/usr/lib/systemd/system/"
    cp configs/systemd/cascade.sysusers "$stage/usr/lib/sysusers.d/cascade-kv.conf"
    cp configs/cascade.toml "$stage/etc/cascade/"
    tracked clients/python "$share/python" cascade_kv pyproject.toml setup.py README.md
    tracked . "$doc" README.md docs configs
    licences "$doc/licences"
    cat >"$doc/copyright" <<EOF
The sources of CASCADE state no licence of their own: whoever gave you this package has the right to say what you may do
with it. The folder licences has those of Go and of the modules that the programs are linked of.
EOF
    find "$stage" -type d -exec chmod 755 {} +
    find "$stage" -type f -exec chmod u=rw,go=r {} +
    find "$stage/usr/bin" "$stage/usr/share/doc/cascade-kv/configs/slurm" -type f -exec chmod 755 {} +
    find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
        --transform="s,^\./usr\|^\.,cascade-kv-$version," -C "$stage" -cf - ./usr ./etc |
        gzip -9 -n >"$out/cascade-kv-$version-linux-$machine.tar.gz"

    export PACKAGE_ARCH=$arch
    nfpm() { env -u GOARCH go tool -modfile=scripts/nfpm.mod nfpm package -f configs/package/nfpm.yaml -t "$out/" -p "$1"; }
    nfpm rpm
    # The one folder by which Debian differs.
    mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
    touch -d "@$SOURCE_DATE_EPOCH" "$stage/usr/share/zsh"
    nfpm deb
done
rm -rf "$stage" "$out/tools" "$out/manual"
ls -l "$out"
