"""A registry on this machine, in place of all others, behind a proxy that decrypts TLS.

Clients reach it as on a company's network: by `HTTPS_PROXY`, with a certificate authority that only
`REQUESTS_CA_BUNDLE` names. Hosts of ECR ask for a user and password, others for a token.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from testbed.processes import binaries

ECR = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
PUBLIC = "public.ecr.aws"
DAY = timedelta(days=1)


@dataclass
class Registries:
    """The registry, its proxy, and the requests that the proxy has passed on."""

    address: str
    """Host and port of the registry, without TLS and without login."""

    proxy: str
    bundle: Path
    user: str = "AWS"
    """The user that ECR's hosts admit, with any password."""

    requests: list[str] = field(default_factory=list)
    """Method and URL of each, without the scheme and the query."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a client."""
        return {
            "HTTPS_PROXY": self.proxy,
            "https_proxy": self.proxy,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "REQUESTS_CA_BUNDLE": str(self.bundle),
        }

    def pushes(self) -> list[str]:
        """Return the requests that change something."""
        return [one for one in self.requests if one.split()[0] in ("POST", "PUT", "PATCH")]


@contextmanager
def registries(folder: Path) -> Iterator[Registries]:
    """Run a registry and its proxy, with their files in a folder."""
    command = [str(binaries.ensure("registry")), str(folder / "images")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as registry:
        assert registry.stdout is not None
        address = f"127.0.0.1:{int(registry.stdout.readline())}"
        with ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as server:
            proxy = f"http://127.0.0.1:{server.server_port}"
            _Proxy.known = Registries(address, proxy, folder / "ca.pem")
            _Proxy.context = _server_context(folder)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield _Proxy.known
            finally:
                server.shutdown()
                registry.terminate()


def _server_context(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proxy")])
    now = datetime.now(UTC)
    hosts = x509.SubjectAlternativeName([x509.DNSName(host) for host in (ECR, PUBLIC)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(hosts, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / "key.pem").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    known: Registries
    context: ssl.SSLContext
    host = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.context.wrap_socket(self.connection, server_side=True)
        except OSError:  # the client does not trust the certificate
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.known.requests.append(f"{self.command} {self.host}{self.path.partition('?')[0]}")
        if self.path.startswith("/token/"):
            self._answer(200, {}, json.dumps({"token": "anonymous"}).encode())
        elif challenge := self._challenge():
            self._answer(401, {"WWW-Authenticate": challenge}, b"{}")
        else:
            registry = http.client.HTTPConnection(self.known.address)
            headers = {**self.headers, "X-Forwarded-Proto": "https"}
            registry.request(self.command, self.path, body, headers)
            answer = registry.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
            registry.close()

    def _challenge(self) -> str:
        """Return how the host asks for a login; empty if the request has what it asks for."""
        given = self.headers.get("Authorization", "")
        if self.host == PUBLIC:
            wanted = f'Bearer realm="https://{PUBLIC}/token/",service="{PUBLIC}",scope="aws"'
            return "" if given == "Bearer anonymous" else wanted
        user = base64.b64decode(given.removeprefix("Basic ")).decode().partition(":")[0]
        return "" if user == self.known.user else f'Basic realm="https://{self.host}/"'

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        length = {} if "Content-Length" in headers else {"Content-Length": str(len(body))}
        for name, value in {**headers, **length}.items():
            if name not in ("Date", "Transfer-Encoding"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _pass_on  # noqa: N815
