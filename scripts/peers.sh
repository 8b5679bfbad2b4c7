#!/bin/sh
# Installs Tilus, TileLang, Hidet and Triton, each in an environment of its own below .peers, so that
# tests can make real caches with them. TORCH names what to install as PyTorch; its CPU build will do.
set -eu

PYTHON=${PYTHON:-python3}
PEERS=${PEERS:-.peers}
TORCH=${TORCH:-torch}

install() {
    name=$1
    shift
    [ -e "$PEERS/$name/.ready" ] && return
    echo "peers: installing $*" >&2
    "$PYTHON" -m venv --clear "$PEERS/$name"
    "$PEERS/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
    touch "$PEERS/$name/.ready"
}

# Newer tvm-ffi headers do not compile what Tilus 0.2 writes.
install tilus tilus==0.2.0 apache-tvm-ffi==0.1.12 cuda-python "$TORCH"
install tilelang tilelang==0.1.15 "$TORCH"
install hidet hidet==0.6.1 "$TORCH"
install triton triton==3.9.0
