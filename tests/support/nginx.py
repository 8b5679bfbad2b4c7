"""nginx with WebDAV as `tests/remote/nginx.conf` has it: a remote cache that takes anything."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.casd import free_port, listens
from support.processes import wait_until

_CONF = Path(__file__).parents[1] / "remote" / "nginx.conf"


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve what is below `root/held`; skip where there is no nginx."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs nginx")
    for name in ("held/ac", "held/cas", "incoming"):
        (root / name).mkdir(parents=True)
    port = free_port()
    # Its workers would be another user, for whom pytest's directories are closed.
    text = "user root;\n" if os.geteuid() == 0 else ""
    conf = root / "nginx.conf"
    text += _CONF.read_text()
    conf.write_text(text.replace("@ROOT@", str(root)).replace("@PORT@", str(port)))
    with subprocess.Popen([program, "-c", conf], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}"
        process.terminate()
