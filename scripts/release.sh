#!/bin/sh
# Builds the packages of a release, and installs each with every Python: dist/ then has an sdist, and the wheel that
# was made from it. With each Python, a new project is built and its kernel called.
#
#   PYTHONS="python3.10 python3.13" sh scripts/release.sh
#
# PYTHONS: the interpreters; default: those of python3.10 to python3.14 that are on PATH. TAG: the tag of the release,
# which must be v and the version (tilusbuild/_version.py).
set -eu

cd "$(dirname "$0")/.."
here=$(pwd)
if [ -z "${PYTHONS:-}" ]; then
    for minor in 10 11 12 13 14; do
        # A name on PATH may be a shim of a version that is not chosen: it must run.
        ! "python3.$minor" -V >/dev/null 2>&1 || PYTHONS="${PYTHONS:-} python3.$minor"
    done
fi
[ -n "${PYTHONS:-}" ] || { echo "release: no python3.10 to python3.14 on PATH: set PYTHONS" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for python in $PYTHONS; do break; done
"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install -q --disable-pip-version-check 'hatchling>=1.26'
version=$("$scratch/build/bin/python" -m hatchling version)
if [ -n "${TAG:-}" ] && [ "$TAG" != "v$version" ]; then
    echo "release: the tag is $TAG, and tilusbuild/_version.py has $version" >&2
    exit 1
fi

rm -rf dist
"$scratch/build/bin/python" -m hatchling build -t sdist -d dist
# The wheel is made from the sdist, so that the sdist is whole.
mkdir "$scratch/sdist"
tar -xzf "dist/tilusbuild-$version.tar.gz" -C "$scratch/sdist" --strip-components 1
(cd "$scratch/sdist" && "$scratch/build/bin/python" -m hatchling build -t wheel -d "$here/dist")

for python in $PYTHONS; do
    for file in "$here/dist/"*.whl "$here/dist/"*.tar.gz; do
        echo "release: $("$python" -V), ${file##*/}"
        rm -rf "$scratch/venv" "$scratch/kernels" "$scratch/cache"
        "$python" -m venv "$scratch/venv"
        "$scratch/venv/bin/pip" install -q --disable-pip-version-check "$file"
        (
            cd "$scratch"
            export TILUSBUILD_CACHE_DIR="$scratch/cache"
            PATH="$scratch/venv/bin:$PATH"
            [ "$(tilusbuild --version)" = "tilusbuild $version" ]
            tilusbuild init kernels >/dev/null
            cd kernels
            tilusbuild build -q -t cpu
            tilusbuild run axpby --target cpu
            python -c 'import tilusbuild; print(tilusbuild.load("axpby"))'
        )
    done
done
