"""A package as a folder: the files under their own names, ready to be loaded from in place."""

from __future__ import annotations

import os

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.formats.plain import make_folder, settle, write_file
from tilusbuild.package.purpose import is_executable


def write_directory(contents: Contents, path: str, *, time: int) -> None:
    """Make the folder `path`, which is not there yet. Nothing of it depends on the umask, and all
    modification times are `time`, in seconds since 1970. Raises `CannotPack` and `OSError`."""
    make_folder(path)
    folders = {""}
    for name in contents.listed.files:
        _put(path, name, contents.read(name), time, folders)
    for name, data in {**contents.beside, names.LIST: contents.encoded}.items():
        _put(path, name, data, time, folders)
    for folder in sorted(folders, reverse=True):
        os.utime(os.path.join(path, folder).rstrip("/"), (time, time))
    settle(path)


def _put(path: str, name: str, data: bytes, time: int, folders: set[str]) -> None:
    _folders(path, os.path.dirname(name), folders)
    file = os.path.join(path, name)
    write_file(file, data, executable=is_executable(name))
    os.utime(file, (time, time))


def _folders(path: str, folder: str, made: set[str]) -> None:
    if folder not in made:
        _folders(path, os.path.dirname(folder), made)
        make_folder(os.path.join(path, folder))
        made.add(folder)
