#!/bin/sh
# Makes the virtual environment that `make demo` and `make test` use, from nothing but Python 3.10+.
# NVIDIA's compiler is installed from its wheels only where the machine has no CUDA toolkit.
set -eu

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_debian() {
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: please install $*" >&2
        exit 1
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

command -v "$PYTHON" >/dev/null 2>&1 || install_debian python3
command -v g++ >/dev/null 2>&1 || install_debian g++
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup: $PYTHON is $("$PYTHON" -V 2>&1); tilusbuild needs Python 3.10 or later (make PYTHON=python3.x)" >&2
    exit 1
}

if [ ! -x "$VENV/bin/pip" ]; then
    "$PYTHON" -m venv "$VENV" >/dev/null 2>&1 || {
        install_debian python3-venv
        rm -rf "$VENV"
        "$PYTHON" -m venv "$VENV"
    }
fi

extras=dev,nvrtc
if ! "$VENV/bin/python" scripts/has_toolkit.py; then
    extras=dev,cuda
fi
echo "setup: installing tilusbuild[$extras] in $VENV" >&2
"$VENV/bin/pip" install --quiet --disable-pip-version-check --editable ".[$extras]"
