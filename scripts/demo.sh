#!/bin/sh
# What `make demo` shows: a real project built from source, run and checked on the CPU target,
# and a second build that has nothing to do.
set -eu

BIN=${BIN:-.venv/bin}
PROJECT=${PROJECT:-examples/quickstart}

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

say "$BIN/tilusbuild" doctor -C "$PROJECT"
say "$BIN/tilusbuild" plan -C "$PROJECT"
say "$BIN/tilusbuild" build -C "$PROJECT"
say "$BIN/tilusbuild" run rms_norm --target cpu -C "$PROJECT"
say "$BIN/tilusbuild" run saxpy --target cpu -C "$PROJECT"
say "$BIN/tilusbuild" build -C "$PROJECT" --json
