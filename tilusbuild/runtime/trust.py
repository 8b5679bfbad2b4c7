"""Whose files are believed when no option names them: one's own, root's, and those of directories
that one says are safe.

A build runs what the `tilus.toml` that it finds says, and `load` runs the code in the cache that it
finds. Both look upwards from the working directory, so anybody who may write in a directory above,
as all may in `/tmp`, could answer. As with git's `safe.directory`, what is found so must belong to
the user, to root, or to who called `sudo`: the file and the directory that it is in. What is named,
by `where=` or a cache's path, is believed: whoever names it has looked.
"""

from __future__ import annotations

import os

VARIABLE = "TILUSBUILD_SAFE_DIRECTORIES"


def refusal(path: str) -> str | None:
    """Return why a file or directory that was found, and not named, is not believed, in words; None
    when it is, or is not there."""
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    for each in (path, directory):
        owner = stranger(each)
        if owner is not None:
            if _is_safe(directory):
                return None
            return (
                f"{each} belongs to another user, {owner}, and what it says would be run\n"
                f"  {VARIABLE}={directory} believes it: directories with `:` between,"
                " those below with /*, all with *"
            )
    return None


def stranger(path: str) -> str | None:
    """Return who owns a file or a directory, or the link to it, if that is another user."""
    for status in (os.lstat, os.stat):
        try:
            owner = status(path).st_uid
        except OSError:
            continue
        if not is_trusted(owner):
            return _name(owner)
    return None


def is_trusted(owner: int) -> bool:
    """Return whether a user's files are believed."""
    own = os.geteuid()
    if owner in (own, 0):
        return True
    return own == 0 and os.environ.get("SUDO_UID") == str(owner)


def _is_safe(directory: str) -> bool:
    for word in os.environ.get(VARIABLE, "").split(os.pathsep):
        below = word.removesuffix("/*")
        if word == "*" or (os.path.isabs(word) and os.path.normpath(word) == directory):
            return True
        if below != word and os.path.isabs(word) and f"{directory}/".startswith(f"{below}/"):
            return True
    return False


def _name(owner: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(owner).pw_name} (uid {owner})"
    except KeyError:
        return f"uid {owner}"
