#!/bin/sh
# Writes the Python code of tilusbuild/reapi/reapi.proto. Needs grpcio-tools: `PYTHON` may name an
# environment that has it. 1.71 brings protoc 29: what it writes runs with protobuf 5.29 and later.
set -eu
cd "$(dirname "$0")/.."
"${PYTHON:-python3}" -m grpc_tools.protoc -I tilusbuild/reapi \
  --python_out="${OUT:-tilusbuild/reapi}" --pyi_out="${OUT:-tilusbuild/reapi}" \
  tilusbuild/reapi/reapi.proto
# Places in the descriptor, by which protobuf in pure Python copies it; nothing here does.
sed -i '/_serialized_\(start\|end\)=/d' "${OUT:-tilusbuild/reapi}/reapi_pb2.py"
