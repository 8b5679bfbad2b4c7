"""The directory of a cache, and the only functions that change it.

- A directory is a cache of tilusbuild if it has the mark: a CACHEDIR.TAG that names tilusbuild, or
  an index with its seal. A directory with other files and without the mark is never written. The
  exception is `.cache`, which programs share: there, only names of tilusbuild count.
- No link and no mount inside leads a change out of the tree: its directories must be directories.
- A change is made in a private directory below `staging` and renamed into place. A reader sees the
  old state or the new one, whichever process is killed.
- The holder of a private directory's lock owns it. A killed builder leaves one without a holder,
  and the next builder removes it.
- An entry is moved to `staging` before it is removed, so that no reader sees a half-removed one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

from tilusbuild.cache import layout
from tilusbuild.cache.disk import CacheReadOnlyError, Disk, wrap_oserror
from tilusbuild.cache.locks import LockName, Locks
from tilusbuild.errors import InputError, input_error
from tilusbuild.runtime.reader_lock import LOCKS
from tilusbuild.runtime.regular import try_read_bytes, try_stat
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.state.directories import is_real_directory, list_below, open_below
from tilusbuild.state.files import OCCUPIED

# The names that are made before the mark, which is written through them.
_MADE_BEFORE_MARK = frozenset((layout.STAGING, LOCKS))
# Bytes of a CACHEDIR.TAG that are read: ours has 250.
_MAX_MARK = 1 << 12
# Attempts to free a path for a move: a process without a lock may fill it again.
_ATTEMPTS = 10
_USE_ANOTHER = "name another directory with --cache-dir or `build.cache-dir`"


class PrivateDirectory:
    """A directory below `staging` that one process changes, with its locks."""

    def __init__(self, path: str, disk: Disk, locks: ExitStack) -> None:
        self.path = path
        self._disk = disk
        self._locks = locks

    def discard(self) -> None:
        """Remove the directory and release its locks. What cannot be removed is left to a sweep."""
        with suppress(OSError):
            self._disk.remove_tree(self.path)
        # After it: without its lock, a sweep would remove the directory at the same time.
        self._locks.close()


class Tree:
    """Paths, locks and changes of the cache at `root`. Making the object touches no file. Threads
    may share it."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self.root = os.path.abspath(root)
        self.disk = disk or Disk()
        self.locks = Locks(self.root)
        self._is_swept = False
        self._was_complete = False

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    @property
    def state_path(self) -> str:
        """The directory of files that save work between runs; no result depends on them."""
        return self.path(layout.STATE)

    def program_path(self, program: str) -> str:
        return self.path(layout.PROGRAMS, program)

    def include_path(self, digest: str) -> str:
        return self.path(layout.INCLUDE, digest)

    def script_path(self, directory: str, digest: str) -> str:
        return self.path(layout.SCRIPTS, directory, digest)

    def locate_measurements(self, directory: str) -> str:
        """Return the path of the measurements of the script that `directory` in `scripts` has."""
        return self.path(layout.STATE, layout.TUNED, directory, layout.MEASURED)

    def list_names(self, *directory: str) -> list[str]:
        """Return the names in a directory of the tree, sorted; none when it is missing, or is a
        link or behind one."""
        return list_below(self.root, *directory)

    # Existence.

    def exists(self) -> bool:
        """Return whether the tree exists. Raises `InputError` for a directory that is not a cache,
        and for a cache with a link in the place of a directory."""
        try:
            names = set(os.listdir(self.root))
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise self._make_unusable_error(error) from None
        if not self._is_marked():
            # A directory that programs share may be a cache whatever files of others are in it.
            if layout.is_shared_default(self.root):
                names &= layout.TOP
            if self._is_half_made(names):
                return False
            # The message names the file that most surely is not one of tilusbuild's.
            suspects = names - layout.TOP or names - _MADE_BEFORE_MARK or names
            raise input_error(
                f"{self.root} is not a cache of tilusbuild: it holds {min(suspects)!r}, and no"
                f" {layout.TAG} of tilusbuild",
                hint=f"a cache needs a directory of its own; {_USE_ANOTHER}",
            )
        for name in names.intersection(layout.DIRECTORIES):
            self._check_directory(name)
        return True

    def _is_marked(self) -> bool:
        """Return whether the root has the mark: a tag of tilusbuild, or a sealed index."""
        tag = try_read_bytes(self.path(layout.TAG), _MAX_MARK, follow=False)
        if tag is not None and tag.startswith(layout.TAG_START):
            return True
        # A user may delete the tag, which looks like rubbish; the index alone is proof as well.
        with suppress(CorruptFileError):
            index = try_read_bytes(self.path(layout.INDEX), follow=False)
            return index is not None and "projects" in unseal_json(index)
        return False

    def _is_half_made(self, names: set[str]) -> bool:
        """Return whether a directory with these names is a tree whose making was interrupted."""
        return (
            names <= _MADE_BEFORE_MARK
            and all(map(layout.is_staging, self.list_names(layout.STAGING)))
            and all(map(layout.is_lock, self.list_names(LOCKS)))
            and all(is_real_directory(self.path(name)) for name in names)
        )

    def _check_links(self, directory: str) -> None:
        """Raise `InputError` if a link in `directory` leads to a directory: files would be written
        through it."""
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.path(directory)) as entries,
        ):
            for entry in entries:
                # Files are written beside their place and renamed to it, which follows no link.
                if entry.is_symlink() and os.path.isdir(entry.path):
                    self._check_directory(f"{directory}/{entry.name}")

    def _check_directory(self, name: str) -> None:
        """Raise `InputError` if `name` in the tree exists and is a link or not a directory."""
        path = self.path(name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return  # another process has cleared the cache since its name was read
        except OSError as error:
            raise self._make_unusable_error(error) from None
        if not stat.S_ISDIR(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "not a directory"
            raise input_error(
                f"{path} is {kind}: nothing is written or removed through it",
                hint=f"remove it; a cache as a whole may be a link. Or {_USE_ANOTHER}",
            )

    def ensure_complete(self) -> None:
        """Make the missing directories and files of the tree; do nothing in a read-only cache.

        Raises `InputError` where no cache can be made, and `CacheError`.
        """
        if not self.exists():
            try:
                self._make_root()
            except OSError as error:
                raise self._make_unusable_error(error) from None
        with suppress(CacheReadOnlyError), wrap_oserror(self.root):
            # Before the mark, which is written through them.
            for name in (LOCKS, layout.STAGING):
                self.disk.make_directory(self.path(name))
            for name, text in ((layout.TAG, layout.TAG_TEXT), (layout.IGNORE, layout.IGNORE_TEXT)):
                status = try_stat(self.path(name))
                if status is None or status.st_size != len(text):
                    self.put_file(self.path(name), text)
            for name in layout.DIRECTORIES:
                if not is_real_directory(self.path(name)):
                    self.disk.make_directory(self.path(name))
            self._was_complete = True
        # The other directories have no files that are written by path, without `staging`.
        for directory in (layout.STATE, f"{layout.STATE}/{layout.TUNED}"):
            self._check_links(directory)

    def ensure_exists(self) -> None:
        """Make the tree like `ensure_complete`, but only if it was deleted or replaced since. This
        is cheap enough for each program. Raises the same."""
        if not (self._was_complete and self._has_directories()):
            self.ensure_complete()

    def _has_directories(self) -> bool:
        """Return whether the mark and all directories of the tree exist, none of them a link."""
        try:
            with os.scandir(self.root) as entries:  # one look for all of them
                is_directory_by_name = {
                    entry.name: entry.is_dir(follow_symlinks=False) for entry in entries
                }
        except OSError:
            return False
        return layout.TAG in is_directory_by_name and all(
            is_directory_by_name.get(name) for name in layout.DIRECTORIES
        )

    def _make_root(self) -> None:
        """Make the root with its missing parents. Raises `OSError`."""
        # By `Disk`, not by `os.makedirs`: tests let each change fail.
        missing: list[str] = []
        directory = self.root
        while not os.path.isdir(directory):
            missing.append(directory)
            parent = os.path.dirname(directory)
            if parent == directory:
                break
            directory = parent
        for directory in reversed(missing):
            self.disk.make_directory(directory)

    def _make_unusable_error(self, error: OSError | ValueError) -> InputError:
        """Return the error for a root that cannot be read or made, with the reason in `error`."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, NotADirectoryError | FileExistsError):
            reason = "a file is in the way"
        return input_error(
            f"{self.root!r} cannot be the cache directory: {reason}", hint=_USE_ANOTHER
        )

    # Locks.

    @contextmanager
    def hold_locks(self, *names: LockName) -> Iterator[None]:
        """Wait for locks and hold them during a block. Makes a missing tree. Raises `CacheError`,
        and `InputError` as `ensure_complete`."""
        self.ensure_exists()
        with wrap_oserror(self.locks.path):
            locks = self.locks.take_locks(*names)
        if locks is not None:  # always, as it waits
            with locks:
                yield

    @contextmanager
    def lock_program(self, program: str, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a program during a block; yield whether it was taken, which it always is
        with `wait`. Raises `CacheError`."""
        self.ensure_exists()
        with wrap_oserror(self.locks.path):
            lock = self.locks.take_locks(LockName("program", program), wait=wait)
        with lock or nullcontext():
            yield lock is not None

    @contextmanager
    def hold_use(self) -> Iterator[None]:
        """Hold the shared lock `use` during a block: no garbage is collected meanwhile. Waits for a
        running collection.

        A read-only cache is used without a lock: its writers must not collect while it is read.
        """
        self.ensure_complete()
        lock = None
        with suppress(CacheReadOnlyError), wrap_oserror(self.locks.path):
            lock = self.locks.take_locks(LockName("use", shared=True))
        with lock or nullcontext():
            yield

    def hold_use_if_exists(self) -> AbstractContextManager[None]:
        """Return `hold_use()` of an existing cache, else a context that does nothing: readers
        create no cache. Raises `InputError` like `exists`."""
        return self.hold_use() if self.exists() else nullcontext()

    # Changes.

    def make_private(self, *, is_waited_for: bool = True) -> PrivateDirectory:
        """Return a new private directory. If `is_waited_for`, a collection waits for its end."""
        self.ensure_exists()
        return self._make_private_directory(is_waited_for)

    def _make_private_directory(self, is_waited_for: bool) -> PrivateDirectory:
        """Return a new private directory in an existing tree. The first call of a process also
        removes those that killed processes left. Raises `CacheError`."""
        # A convenient moment to remove what killed builders left: once in a process.
        self.sweep_staging()
        with wrap_oserror(self.path(layout.STAGING)):
            # A collection takes `use` exclusively, and so waits for those who share it.
            names = [LockName("use", shared=True)] if is_waited_for else []
            locks = self.locks.take_locks(*names)
            assert locks is not None  # noqa: S101 - it waits
            try:
                path = self._make_staging_directory(locks)
            except BaseException:  # a KeyboardInterrupt, too: no lock outlives its directory
                locks.close()
                raise
        return PrivateDirectory(path, self.disk, locks)

    def _make_staging_directory(self, locks: ExitStack) -> str:
        """Make a directory with a random name in `staging`, and push its lock on `locks`. Return
        its path."""
        while True:
            name = os.urandom(10).hex()  # 20 digits, as `layout.is_staging` expects
            lock = self.locks.take_locks(LockName("stage", name), wait=False)
            # Names share lock files: if another process holds this one, the next name is tried.
            if lock is not None:
                locks.push(lock)
                path = self.path(layout.STAGING, name)
                self.disk.make_directory(path)
                return path

    def sweep_staging(self, *, again: bool = False) -> list[str]:
        """Remove the private directories without a holder; return the names of the removed ones.

        Only the first call for this object does that, and each call with `again`; the others return
        []. Ignores `OSError`s.
        """
        if self._is_swept and not again:
            return []
        self._is_swept = True
        names: list[str] = []
        removed = []
        with suppress(OSError):
            names = self.list_names(layout.STAGING)
        for name in filter(layout.is_staging, names):
            # One that cannot be removed does not keep the others; `cache gc` lists it.
            with suppress(OSError):
                lock = self.locks.take_locks(LockName("stage", name), wait=False)
                if lock is not None:
                    with lock:
                        self.disk.remove_tree(self.path(layout.STAGING, name))
                        removed.append(name)
        return removed

    def put_file(self, path: str, data: bytes) -> None:
        """Make or replace a file by one rename; its directory must exist. Raises `OSError`."""
        private = self._make_private_directory(is_waited_for=False)
        try:
            new_file = os.path.join(private.path, "file")
            self.disk.write_file(new_file, data)
            self.disk.sync_files([new_file])
            self.move_into_place(new_file, path)
        finally:
            private.discard()

    def move_into_place(
        self,
        source: str,
        path: str,
        *,
        durable: bool = True,
        is_kept: Callable[[], bool] = lambda: False,
    ) -> None:
        """Rename `source` to `path`, and remove an earlier entry there first.

        If `is_kept()` is true, an earlier entry stays, and `source` too. With `durable` the rename
        is synced; else the caller syncs the directory. Raises `OSError`.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self.disk.rename(source, path)
                break
            except OSError as error:
                if error.errno not in OCCUPIED or attempt == _ATTEMPTS - 1:
                    raise
            # Not before the rename: another process may put an entry at `path` at any time.
            if is_kept():
                return
            self.remove_entry(path)
        if durable:
            self.disk.sync_directory(os.path.dirname(path))

    def remove_entry(self, path: str) -> None:
        """Remove an entry; do nothing if it does not exist. Readers never see a part of it. Raises
        `OSError`, also for a link between the root and the entry."""
        parent = os.path.relpath(os.path.dirname(path), self.root)
        try:
            # Opened only because that fails for a link on the way.
            with open_below(self.root, *(name for name in parent.split("/") if name != ".")):
                pass
        except FileNotFoundError:
            return
        # Without the lock `use`: a collection, which holds it exclusively, removes entries, too.
        private = self._make_private_directory(is_waited_for=False)
        try:
            with suppress(FileNotFoundError):
                self.disk.rename(path, os.path.join(private.path, "old"))
        finally:
            private.discard()
