#!/bin/sh
# Fetch the library that the report draws with, as its makers published it, and check it by digest.
# For a new release: change the number, run with --new, look at the licence, run the tests.
set -eu
release="6.1.0"
cd "$(dirname "$0")/../tilusbuild/page/vendor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
curl -fsSL "https://registry.npmjs.org/echarts/-/echarts-$release.tgz" | tar -xz -C "$work"
cp "$work/package/dist/echarts.min.js" echarts.min.js
cp "$work/package/LICENSE" echarts.LICENSE
cp "$work/package/NOTICE" echarts.NOTICE
if [ "${1:-}" = --new ]; then
  sha256sum echarts.LICENSE echarts.NOTICE echarts.min.js > SHA256SUMS
fi
sha256sum -c SHA256SUMS
