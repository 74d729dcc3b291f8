"""A Git host on loopback that answers at an HTTPS URL without a port, as users write it.

Pulumi clones with its own Git client, which needs HTTPS and ignores `insteadOf` in the user's Git
configuration, but uses the proxy in HTTPS_PROXY. So this host is a proxy that answers in place of
the URL's host.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509

from tests.architecture.test_trust import Authority

SERVICE = "git-upload-pack"
ANNOUNCED = f"001e# service={SERVICE}\n0000".encode()
"""What comes before the list of a repository's references."""

ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Joiner",
    "GIT_AUTHOR_EMAIL": "joiner@example.com",
    "GIT_COMMITTER_NAME": "Joiner",
    "GIT_COMMITTER_EMAIL": "joiner@example.com",
}
"""Git's environment: the user's own settings do not apply."""


def git(repository: Path, *arguments: str, given: bytes = b"") -> bytes:
    """Run Git in a repository; return its output."""
    environment = {"PATH": os.environ["PATH"], **ALONE}
    return subprocess.run(
        ["git", *arguments],
        cwd=repository,
        env=environment,
        input=given,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


def commit(repository: Path, tag: str) -> None:
    """Make a folder a repository with one commit, which has an annotated tag."""
    git(repository, "init", "--quiet")
    git(repository, "add", "--force", ".")
    git(repository, "commit", "--quiet", "--message", "Everything")
    git(repository, "tag", "--annotate", "--message", tag, tag)


@dataclass(frozen=True)
class GitHost:
    """A host of one repository."""

    url: str
    """The repository's URL without a scheme, such as `git.example.com/platform/joiner.git`."""
    environment: Mapping[str, str]
    """The variables with which a program in Go finds the host, and trusts it.

    Programs in Python use the same proxy as without these variables.
    """
    answered: list[str] = field(default_factory=list)
    """The URLs of all answered requests, without scheme and query."""


@contextmanager
def serve(repository: Path, url: str, folder: Path) -> Iterator[GitHost]:
    """Serve a repository under a URL; certificates are written to a folder."""
    authority, pem = Authority(), folder / "host.pem"
    trusted = folder / "trusted"
    trusted.mkdir()
    (trusted / "authority.pem").write_text(authority.pem)
    pem.write_bytes(authority.server(x509.DNSName(url.partition("/")[0])))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    server = _Server(repository, url, tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield GitHost(url, _environment(server.server_port, trusted), server.answered)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _environment(port: int, trusted: Path) -> dict[str, str]:
    # Go reads the name in capital letters first, Python the other one.
    own = os.environ.get("https_proxy", os.environ.get("HTTPS_PROXY", ""))
    return {
        "HTTPS_PROXY": f"http://127.0.0.1:{port}",
        "https_proxy": own,
        # Trusted besides the authorities in SSL_CERT_FILE.
        "SSL_CERT_DIR": str(trusted),
    }


class _Server(ThreadingHTTPServer):
    def __init__(self, repository: Path, url: str, tls: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.repository = repository
        self.host, _, self.path = url.partition("/")
        self.tls = tls
        self.answered: list[str] = []


class _Connection(BaseHTTPRequestHandler):
    server: _Server

    def do_CONNECT(self) -> None:
        """Answer the client as if this process were the host that the client asks for."""
        if self.path != f"{self.server.host}:443":
            return self.send_error(HTTPStatus.BAD_GATEWAY)
        self.send_response(HTTPStatus.OK)
        self.end_headers()
        self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        self.setup()  # from here on, reads and writes are encrypted
        self.close_connection = False  # the client's request follows
        return None

    def do_GET(self) -> None:
        """List the references."""
        if self._is("info/refs", f"?service={SERVICE}"):
            self._answer("advertisement", ANNOUNCED + self._upload_pack("--advertise-refs"))

    def do_POST(self) -> None:
        """Send commits."""
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is(SERVICE):
            self._answer("result", self._upload_pack(given=asked))

    def _is(self, path: str, query: str = "") -> bool:
        if self.path != f"/{self.server.path}/{path}{query}":
            self.send_error(HTTPStatus.NOT_FOUND)
            return False
        self.server.answered.append(f"{self.server.host}/{self.server.path}/{path}")
        return True

    def _upload_pack(self, *options: str, given: bytes = b"") -> bytes:
        return git(
            self.server.repository, "upload-pack", "--stateless-rpc", *options, ".", given=given
        )

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"application/x-{SERVICE}-{kind}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def finish(self) -> None:
        """Close the encrypted connection too."""
        super().finish()
        self.request.close()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
