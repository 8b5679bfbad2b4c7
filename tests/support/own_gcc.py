"""The machine's g++ in a directory of its own, as conda and spack install one."""

import os
import shutil
import subprocess
from pathlib import Path


def install_gcc(root: Path, options: str = "") -> Path:
    """Install g++ and gcc below `root`, with a `specs` file for these options; return their
    directory. Their parts are links to the machine's."""
    command = ("gcc", "-print-libgcc-file-name")
    libgcc = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    parts = Path(libgcc).parent
    own = root.joinpath("lib/gcc", *parts.parts[-2:])
    own.mkdir(parents=True)
    for path in parts.iterdir():
        (own / path.name).symlink_to(path)
    if options:
        write_specs(root, options)
    programs = root / "bin"
    programs.mkdir()
    for name in ("g++", "gcc"):
        shutil.copy(os.path.realpath(shutil.which(name) or name), programs / name)
    return programs


def write_specs(root: Path, options: str) -> None:
    """Write the file with which a distribution changes what its compiler does."""
    (own,) = root.glob("lib/gcc/*/*")
    (own / "specs").write_text(f"*cc1plus:\n+ {options}\n\n")
