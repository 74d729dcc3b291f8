"""Every TLS client of a cluster trusts exactly what kubectl trusts.

From Python 3.13 on, certificates must carry key identifiers by default. Certificates of older
clusters do not, and Kubernetes has never required them.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest
import urllib3.util.ssl_
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.apis.kinds import NODE
from controller.apiserver.errors import UnavailableError
from controller.kube import access
from controller.kube.client import Client
from controller.manager import handlers
from infra.clusterapi import ClusterApi, ClusterLocation, ClusterUnreachableError
from testbed.cloud.state.tokens import ClusterReviewer, TokenRefusedError
from testbed.kube.kubeconfig import Kubeconfig

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("elsewhere.example.com")
NOTHING: dict[str, Any] = {"metadata": {}}
"""An answer without objects."""

REFUSALS = (ssl.SSLCertVerificationError, ClusterUnreachableError, TokenRefusedError)


class Authority:
    """A certificate authority whose certificates carry no key identifiers."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            self._begun("authority", self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        """The server's certificate."""
        return _pem(self._certificate).decode()

    def server(self, name: x509.GeneralName) -> bytes:
        """Return the key and the certificate of a server of that name, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._begun("server", key)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        written = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return written + _pem(certificate)

    def _begun(self, subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .issuer_name(_named("authority"))
            .subject_name(_named(subject))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Site:
    """An API server behind TLS, which answers everything with nothing."""

    url: str
    context: ssl.SSLContext

    def kubeconfig(self, folder: Path, trusted: Authority, **more: Any) -> Path:
        """Write a kubeconfig that trusts an authority; more of its cluster by keyword."""
        cluster = {"server": self.url, "certificate-authority-data": _encoded(trusted.pem), **more}
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )
        return path


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Silent(BaseHTTPRequestHandler):
    def respond(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(NOTHING).encode())

    do_GET = do_POST = respond  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log clients that do not trust the server."""


Serve = Callable[[bytes], Site]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve TLS on loopback with a key and a certificate."""
    running: list[tuple[Server, threading.Thread]] = []

    def start(key_and_certificate: bytes) -> Site:
        pem = tmp_path / "server.pem"
        pem.write_bytes(key_and_certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server = Server(("127.0.0.1", 0), Silent)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return Site(f"https://127.0.0.1:{server.server_port}", context)

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def newer_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make TLS contexts as Python 3.13 makes them."""
    make = ssl.create_default_context

    def strict(*arguments: Any, **more: Any) -> ssl.SSLContext:
        context = make(*arguments, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    newer = SimpleNamespace(version_info=(3, 13), platform=sys.platform)
    monkeypatch.setattr(urllib3.util.ssl_, "sys", newer)


@pytest.fixture(autouse=True)
def eks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make EKS describe the cluster as the kubeconfig does."""

    class Eks:
        def describe_cluster(self, *, name: str) -> dict[str, Any]:
            config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
            cluster = config["clusters"][0]["cluster"]
            authority = {"data": cluster["certificate-authority-data"]}
            described = {"name": name, "status": "ACTIVE", "endpoint": cluster["server"]}
            return {"cluster": {**described, "certificateAuthority": authority}}

    monkeypatch.setattr(ClusterLocation, "client", lambda _location, _service: Eks())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")


# Each of these clients connects to the server of a kubeconfig, and raises an error if it does not
# trust the server's certificate.


def _controller(kubeconfig: Path) -> None:
    _shake_hands(kubeconfig, access.from_kubeconfig(kubeconfig).ssl_context())


def _kopf(kubeconfig: Path) -> None:
    info = handlers.connection(access.from_kubeconfig(kubeconfig))
    _shake_hands(kubeconfig, info.as_ssl_context())


def _bundle_by_kubeconfig(kubeconfig: Path) -> None:
    ClusterApi.find(ClusterLocation("joiner", "us-west-2", kubeconfig=str(kubeconfig))).get(
        "/version"
    )


def _bundle_by_eks(_kubeconfig: Path) -> None:
    ClusterApi.find(ClusterLocation("joiner", "us-west-2")).get("/version")


def _testbed(kubeconfig: Path) -> None:
    context = Kubeconfig.read(kubeconfig).tls()
    assert isinstance(context, ssl.SSLContext)
    _shake_hands(kubeconfig, context)


def _test_cloud(kubeconfig: Path) -> None:
    try:
        ClusterReviewer(kubeconfig).review("e30.e30.", audience="sts")
    except TokenRefusedError as refused:
        # The server answers with an empty body, which also refuses the token.
        if "does not know the token" not in str(refused):
            raise


def _shake_hands(kubeconfig: Path, context: ssl.SSLContext) -> None:
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    host, port = urlparse(server).hostname, urlparse(server).port
    assert host
    assert port
    with (
        socket.create_connection((host, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


SPEAKERS: list[Callable[[Path], None]] = [
    _controller,
    _kopf,
    _bundle_by_kubeconfig,
    _bundle_by_eks,
    _testbed,
    _test_cloud,
]
every_speaker = pytest.mark.parametrize("speak", SPEAKERS, ids=lambda speaker: speaker.__name__[1:])


@every_speaker
def test_a_cluster_ca_without_key_identifiers_is_accepted(
    serve: Serve, tmp_path: Path, speak: Callable[[Path], None]
) -> None:
    authority = Authority()

    speak(serve(authority.server(LOOPBACK)).kubeconfig(tmp_path, authority))


@every_speaker
def test_a_server_with_a_certificate_of_another_ca_is_refused(
    serve: Serve, tmp_path: Path, speak: Callable[[Path], None]
) -> None:
    # Both authorities have the same name, so only the signature differs.
    kubeconfig = serve(Authority().server(LOOPBACK)).kubeconfig(tmp_path, Authority())

    with pytest.raises(REFUSALS, match="certificate verify failed"):
        speak(kubeconfig)


@every_speaker
def test_a_server_with_a_certificate_for_another_name_is_refused(
    serve: Serve, tmp_path: Path, speak: Callable[[Path], None]
) -> None:
    authority = Authority()
    kubeconfig = serve(authority.server(ELSEWHERE)).kubeconfig(tmp_path, authority)

    with pytest.raises(REFUSALS, match=r"not valid for '127\.0\.0\.1'"):
        speak(kubeconfig)


def test_the_program_verifies_the_certificate_as_the_kubeconfig_says(
    serve: Serve, tmp_path: Path
) -> None:
    authority = Authority()
    site = serve(authority.server(ELSEWHERE))

    def version(**more: Any) -> Any:
        path = site.kubeconfig(tmp_path, authority, **more)
        return ClusterApi.find(ClusterLocation("c", "us-west-2", kubeconfig=str(path))).get("/v")

    assert version(**{"tls-server-name": "elsewhere.example.com"}) == NOTHING
    assert version(**{"insecure-skip-tls-verify": True}) == NOTHING
    with pytest.raises(ClusterUnreachableError, match="certificate"):
        version()


@pytest.mark.parametrize("form", ["data", "file"])
def test_the_program_presents_the_client_certificate_of_the_kubeconfig(
    serve: Serve, tmp_path: Path, form: str
) -> None:
    authority = Authority()
    site = serve(authority.server(LOOPBACK))
    site.context.load_verify_locations(cadata=authority.pem)
    site.context.verify_mode = ssl.CERT_REQUIRED
    path = site.kubeconfig(tmp_path, authority)
    config = yaml.safe_load(path.read_text())
    pair = authority.server(ELSEWHERE)
    (tmp_path / "pair.pem").write_bytes(pair)
    given = {"data": ("-data", _encoded(pair.decode())), "file": ("", "pair.pem")}
    suffix, value = given[form]
    user = {f"client-certificate{suffix}": value, f"client-key{suffix}": value}
    config["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(config))

    _bundle_by_kubeconfig(path)
    config["users"][0]["user"] = {"token": "t"}
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ClusterUnreachableError):
        _bundle_by_kubeconfig(path)


async def test_the_controller_and_its_commands_use_the_tls_server_name_of_the_kubeconfig(
    serve: Serve, tmp_path: Path
) -> None:
    authority = Authority()
    site = serve(authority.server(ELSEWHERE))

    async def listed(**more: str) -> list[Any]:
        path = site.kubeconfig(tmp_path, authority, **more)
        async with Client(access.from_kubeconfig(path)) as client:
            return await client.list(NODE)

    assert await listed(**{"tls-server-name": "elsewhere.example.com"}) == []
    with pytest.raises(UnavailableError, match="certificate"):
        await listed()
