"""TLS with a CA of one's own and clients that must show a certificate, by nginx: as a web server,
and in front of a server of the Remote Execution API."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.casd import Casd, free_port, listens
from support.processes import wait_until
from support.project import NewProject, Project

CONF = """\
{user}daemon off;
pid {root}/pid;
error_log {root}/errors;
events {{}}
http {{
  access_log off;
  client_body_temp_path {root}/incoming;
  ssl_certificate {root}/server.pem;
  ssl_certificate_key {root}/server.key;
  ssl_client_certificate {root}/ca.pem;
  ssl_verify_client on;
  client_max_body_size 1g;
  server {{
    listen 127.0.0.1:{port} ssl {http2};
    root {root}/held;
    location / {{ {location} }}
  }}
}}
"""
_DAV = "dav_methods PUT; create_full_put_path on;"


@dataclass
class Secured:
    """A server and the files of a client that it lets in."""

    address: str
    root: Path

    def user(self, new_user: NewProject, *, ca: bool = True, certificate: bool = True) -> Project:
        file_by_variable = {"TLS_CA": "ca.pem"} if ca else {}
        if certificate:
            file_by_variable |= {"TLS_CERTIFICATE": "client.pem", "TLS_KEY": "client.key"}
        files = {name: str(self.root / file) for name, file in file_by_variable.items()}
        return new_user(self.address, WRITE="1", **files)


@pytest.fixture(params=["https", "grpcs"])
def secured(request: pytest.FixtureRequest, keys: Path, tmp_path: Path) -> Iterator[Secured]:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs nginx")
    root, port = tmp_path / "nginx", free_port()
    (root / "held").mkdir(parents=True)
    (root / "incoming").mkdir()
    for path in keys.iterdir():
        shutil.copy(path, root)
    behind = Casd(tmp_path / "casd") if request.param == "grpcs" else None
    location = _DAV if behind is None else f"grpc_pass grpc://127.0.0.1:{behind.port};"
    user = "user root;\n" if os.geteuid() == 0 else ""
    http2 = "" if behind is None else "http2"
    conf = root / "nginx.conf"
    conf.write_text(CONF.format(user=user, root=root, port=port, location=location, http2=http2))
    with subprocess.Popen([program, "-c", conf], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: listens(port))
        yield Secured(f"{request.param}://127.0.0.1:{port}", root)
        process.terminate()
    if behind is not None:
        behind.kill()


def built(user: Project) -> tuple[int, list[str]]:
    """How many programs a build fetched, and what it warned of."""
    ran = user.run("build", "--json")
    warnings = [event["message"] for event in ran.events if event["event"] == "warning"]
    return ran.summary["remote"]["hits"], warnings


def test_a_ca_of_ones_own_and_a_clients_certificate(secured: Secured, new_user: NewProject) -> None:
    assert built(secured.user(new_user)) == (0, [])
    assert built(secured.user(new_user)) == (2, [])
    for missing, key in (({"ca": False}, "tls-ca"), ({"certificate": False}, "tls-certificate")):
        hits, warnings = built(secured.user(new_user, **missing))
        assert (hits, len(warnings)) == (0, 1), warnings
        assert key in warnings[0]
