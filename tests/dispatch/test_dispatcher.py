"""The C dispatcher decides as the runtime does, and a program in C needs nothing else."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.marks import Marks, record
from support.processes import run_to_end
from tilusbuild.embed import dispatcher
from tilusbuild.embed.csource import NoDispatcherError, write_dispatcher_sources
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.library import load_launcher
from tilusbuild.runtime.tables import TableEntry

MAIN = """\
#include "dispatch.h"
#include <stdio.h>

int main(void) {
  float x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, y[9] = {0};
  int status = mark_launch(x, y, 9, 0);
  printf("%d %g %g %s\\n", status, y[0], y[8], mark_error());
  printf("%d %s\\n", mark_select(4), mark_source(4));
  return 0;
}
"""


def compiled(directory: Path, main: str, library: Path, *words: str) -> str:
    """What a program prints that is called with these words; flags among them are for gcc."""
    flags = [word for word in words if word.startswith("-")]
    (directory / "main.c").write_text(main)
    command = ["gcc", "-Wall", "-Werror", *flags, "main.c", f"-I{library.parent}", str(library)]
    command += ["-o", "main", f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, cwd=directory, check=True)
    return run_to_end([directory / "main", *(w for w in words if w not in flags)]).stdout


def test_a_build_makes_it_for_programs_in_c(built: Marks, tmp_path: Path) -> None:
    directory = built.paths("mark")[0] / "dispatch"
    files = ["dispatch.c", "dispatch.h", "dispatch.json", "libmark.so"]
    assert sorted(path.name for path in directory.iterdir()) == files
    assert dispatcher.is_current_dispatcher(built.script("mark"))
    assert compiled(tmp_path, MAIN, directory / "libmark.so") == "0 11 91 \n2 table\n"


def test_a_library_whose_bytes_were_changed_is_not_opened(copied: Marks, tmp_path: Path) -> None:
    script = copied.script("mark")
    with open(script.get_library_path(1), "ab") as library:
        library.write(b"more")
    out = compiled(tmp_path, MAIN, Path(script.path, "dispatch", "libmark.so"))
    assert re.match(r"-1 0 0 mark: .* is not what was built", out)


def test_it_compiles_without_warnings(copied: Marks, tmp_path: Path) -> None:
    for path in (*copied.paths("mark"), *copied.paths("modelled")):
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        subprocess.run([*command, path / "dispatch" / "dispatch.c"], check=True)


FORKS = """\
#include "dispatch.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static float x[9], y[9];
static void *small(void *none) { (void)none; return mark_launch(x, y, 3, 0) ? "refused" : "ran"; }

int main(int count, char **words) {
  pthread_t thread;
  void *found;
  int status;
  (void)count;
  pthread_create(&thread, NULL, small, NULL);
  int pipe = open(words[1], O_WRONLY); /* when this returns, the thread is opening its program */
  pid_t child = fork();
  if (!child) {
    alarm(20);
    _exit(mark_launch(x, y, 9, 0) == 0 && y[8] == 1 ? 0 : 1);
  }
  waitpid(child, &status, 0);
  close(pipe);
  pthread_join(thread, &found);
  printf("%d %s\\n", status, (char *)found);
  return 0;
}
"""


def test_a_fork_does_not_wait_for_a_thread_that_opens_a_program(copied, tmp_path) -> None:
    """The library that the parent's thread opens is a pipe that nobody has written to yet."""
    script = copied.script("mark")
    Path(script.get_library_path(2)).unlink()
    os.mkfifo(script.get_library_path(2))
    library = Path(script.path, "dispatch", "libmark.so")
    assert (
        compiled(tmp_path, FORKS, library, script.get_library_path(2), "-pthread") == "0 refused\n"
    )


def selections(
    directory: Path, library: Path, name: str, sizes: Sequence[tuple[int, ...]]
) -> list[Any]:
    """What the library chooses. Each time a file of its own: the loader knows libraries by path."""
    own = directory / f"{len(list(directory.iterdir()))}.so"
    opened = ctypes.CDLL(str(shutil.copy(library, own)))
    select, source = (getattr(opened, f"{name}_{what}") for what in ("select", "source"))
    select.argtypes = source.argtypes = [ctypes.c_int64] * len(sizes[0])
    source.restype = ctypes.c_char_p
    return [(select(*values), source(*values).decode()) for values in sizes]


def test_it_follows_the_tables_of_its_device(copied, refreshed, tmp_path) -> None:
    script, entries = copied.script("mark"), [TableEntry((128,), 3, 1e-6, (128,))]
    fingerprint = get_cpu().make_fingerprint(script.hash)
    for mismatch in ({"device": "another cpu"}, {"unknown field": ""}):
        record(script, {**fingerprint, **mismatch}, entries)
    library = Path(refreshed())
    assert selections(tmp_path, library, "mark", [(100,)]) == [(1, "default")]
    record(script, fingerprint, entries)
    assert not dispatcher.is_current_dispatcher(script)
    refreshed()
    assert selections(tmp_path, library, "mark", [(100,)]) == [(3, "measured")]
    before = library.stat().st_ino
    assert Path(refreshed()).stat().st_ino == before, "it is made once"


def test_where_nothing_is_to_be_chosen_the_program_itself_is_called(built: Marks) -> None:
    kernel = Kernel([built.script("mark")._replace(rules=())])
    assert [round(float(kernel(np.zeros(n, "float32"))[-1])) for n in (3, 9)] == [1, 1]
    assert kernel._shared_launcher is load_launcher(built.script("mark"), 1, None)


def test_no_dispatcher_without_a_program(copied: Marks) -> None:
    script = copied.script("mark")
    shutil.rmtree(copied.cache / "programs")
    (copied.cache / "programs").mkdir()
    with pytest.raises(NoDispatcherError, match="no program"):
        write_dispatcher_sources(script, ())
