#!/bin/sh
# Builds the image of the Dockerfile: with docker where a daemon answers, otherwise with buildah,
# which needs no daemon and no image registry.
set -eu

usage() {
    cat <<'END'
usage: docker/build.sh [-t IMAGE] [-- ARGUMENT...]

Builds the image IMAGE (onnxfold) with docker where a daemon answers. Otherwise, on Debian or
Ubuntu and as root, with buildah in a chroot, on a base image that debootstrap makes; both are
installed if they are missing. What stands behind -- goes to `docker build` or `buildah bud`:
for instance --build-arg EXTRA=gpu, or --volume DIR:DIR:ro for buildah.

environment
  BUILD_WITH     docker or buildah, instead of what is found
  BUILDER_BASE   base image that the wheel is built on   } with docker the image that the Dockerfile
  RUNTIME_BASE   base image of the result                } names by its digest, with buildah the
                                                           base made here; NAME@sha256:... pins one
  STORAGE_DRIVER how buildah keeps images: vfs, or overlay, quicker where it can be mounted (vfs)
  DEBIAN_SUITE   release that debootstrap installs (bookworm)
  DEBIAN_MIRROR  where debootstrap gets it from (its own default)

pip in the build gets its packages from where pip on this machine does, by the same settings
(pip.conf, PIP_CONFIG_FILE, PIP_INDEX_URL, PIP_CERT and so on). They are mounted for as long as they
are needed; none stays in the image. Folders of this machine are not among them. Where there is no
pip, say -- --secret id=pip_config,src=pip.conf --secret id=ca_bundle,src=ca.pem.
END
}

say() { echo "build.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

image=onnxfold
while [ $# -gt 0 ]; do
    case $1 in
        -t) [ $# -ge 2 ] || { usage >&2; exit 2; }; image=$2; shift 2 ;;
        -h|--help) usage; exit 0 ;;
        --) shift; break ;;
        *) usage >&2; exit 2 ;;
    esac
done

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

docker_answers() { command -v docker >/dev/null && docker version >/dev/null 2>&1; }

# Where pip on this machine gets packages from, as a pip.conf ($1), and its certificates ($2).
write_pip_settings() {
    python3 - "$1" "$2" <<'END'
import ast
import subprocess
import sys
from pathlib import Path

NETWORK = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy",
           "default-timeout", "timeout", "retries", "cert")
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"],
                        capture_output=True, text=True, check=True).stdout
settings = {}
for line in listed.splitlines():
    key, _, value = line.partition("=")
    section, _, name = key.rpartition(".")
    if section in ("global", "install", "wheel", ":env:") and name in NETWORK:
        if section == ":env:" or name not in settings:
            settings[name] = ast.literal_eval(value)
certificates = settings.pop("cert", None)
if certificates:
    Path(sys.argv[2]).write_text(Path(certificates).read_text())
lines = []
for name, value in settings.items():
    words = [word for word in value.split() if not word.startswith(("file:", "/", ".", "~"))]
    if words:
        lines.append(f"{name} = " + "\n    ".join(words) + "\n")
if lines:
    Path(sys.argv[1]).write_text("[global]\n" + "".join(lines))
END
}

if python3 -m pip --version >/dev/null 2>&1; then
    write_pip_settings "$work/pip.conf" "$work/ca.pem"
fi
if [ -f "$work/pip.conf" ]; then
    say "mounting the settings of pip on this machine"
    set -- --secret "id=pip_config,src=$work/pip.conf" "$@"
fi
if [ -f "$work/ca.pem" ]; then
    say "mounting the certificates of pip on this machine"
    set -- --secret "id=ca_bundle,src=$work/ca.pem" "$@"
fi

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/onnxfold/__init__.py")
revision=$(git -C "$root" describe --always --dirty --abbrev=40 2>/dev/null || echo unknown)
set -- --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "$@"

with_docker() {
    for base in BUILDER_BASE RUNTIME_BASE; do
        eval "value=\${$base:-}"
        [ -z "$value" ] || set -- --build-arg "$base=$value" "$@"
    done
    say "building $image with docker"
    DOCKER_BUILDKIT=1 docker build -t "$image" "$@" "$root"
}

# vfs works on every file system, also inside of a container; overlay, which copies less, does not.
in_store() { buildah --storage-driver "${STORAGE_DRIVER:-vfs}" "$@"; }

install_missing() {
    missing=''
    for program in "$@"; do command -v "$program" >/dev/null || missing="$missing $program"; done
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || fail "install first, as root: apt-get install$missing"
    say "installing$missing with apt-get"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
}

make_base() {
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root: name base images in BUILDER_BASE and RUNTIME_BASE"
    install_missing debootstrap
    say "making the base image $1 with debootstrap"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
        "$suite" "$work/base" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/debootstrap.log" \
        || { tail -n 20 "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
    rm -rf "$work"/base/var/cache/apt/* "$work"/base/var/lib/apt/lists/* "$work"/base/var/log/*
    container=$(in_store from scratch)
    in_store add --quiet "$container" "$work/base" / >/dev/null
    in_store commit --quiet --rm "$container" "$1" >/dev/null
    rm -rf "$work/base"
}

with_buildah() {
    command -v apt-get >/dev/null || command -v buildah >/dev/null \
        || fail "no docker daemon answers, and neither buildah nor apt-get to install it is here"
    install_missing buildah
    suite=${DEBIAN_SUITE:-bookworm}
    base=localhost/onnxfold-base:$suite
    if [ -z "${BUILDER_BASE:-}" ] || [ -z "${RUNTIME_BASE:-}" ]; then
        if in_store inspect --type image "$base" >/dev/null 2>&1; then
            say "using the base image $base made before"
        else
            make_base "$base"
        fi
    fi
    say "building $image with buildah"
    # Only docker's format knows HEALTHCHECK.
    in_store bud --isolation chroot --format docker -t "$image" --build-arg "BUILDER_BASE=${BUILDER_BASE:-$base}" \
        --build-arg "RUNTIME_BASE=${RUNTIME_BASE:-$base}" "$@" "$root"
}

if [ -n "${BUILD_WITH:-}" ]; then
    tool=$BUILD_WITH
elif docker_answers; then
    tool=docker
else
    say "no docker daemon answers"
    tool=buildah
fi
case $tool in
    docker) with_docker "$@" ;;
    buildah) with_buildah "$@" ;;
    *) fail "BUILD_WITH is docker or buildah, not $tool" ;;
esac
say "built $image with $tool"
