"""One process that compiles with NVRTC as a resident one does: a line of JSON with commands comes
in, a line with what came of each goes out.

    pch_process.py NVRTC precompile|plain < commands
"""

import hashlib
import json
import os
import sys
from typing import Any

from tilusbuild.toolchain import nvrtc_command, nvrtc_library, nvrtc_pch

nvrtc_pch._MIN_SECONDS = float(os.environ.get("PCH_WORTH", "0"))


class Counting(nvrtc_library.Nvrtc):
    """NVRTC, and how often precompiled headers were used."""

    used = 0

    def compile(
        self, source: bytes, name: str, options: list[str], *rest: Any, **more: Any
    ) -> tuple[int, bytes, list[bytes]]:
        self.used += any(option.startswith("--use-pch=") for option in options)
        return super().compile(source, name, options, *rest, **more)


def main() -> None:
    nvrtc = Counting(sys.argv[1])
    kept = nvrtc_pch.PrecompiledHeaders(nvrtc) if sys.argv[2] == "precompile" else None
    answers = []
    for directory, words in json.loads(sys.stdin.read()):
        os.chdir(directory)
        before = nvrtc.used
        status, log = nvrtc_command.try_command(nvrtc, words, kept)
        digest = ""
        if os.path.exists("out"):
            with open("out", "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            os.unlink("out")
        answers.append([[status, log.decode("utf-8", "replace"), digest], nvrtc.used - before])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
