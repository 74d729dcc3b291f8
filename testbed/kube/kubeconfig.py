"""Kubeconfigs, read and written: the API server, its CA, and the client's credentials."""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml


@dataclass(frozen=True)
class Kubeconfig:
    """The server and the credentials of a kubeconfig's current context."""

    server: str
    certificate_authority: bytes  # PEM
    client_certificate: bytes | None = None  # PEM
    client_key: bytes | None = None  # PEM
    token: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a kubeconfig; paths in it are relative to its directory.

        Raises ValueError if it has no current context, or refers to an undefined entry.
        """
        return cls.of(yaml.safe_load(path.read_text()), folder=path.parent)

    @classmethod
    def of(cls, document: Mapping[str, Any], *, folder: Path = Path()) -> Self:
        """Parse the document of a kubeconfig; paths in it are relative to `folder`.

        Raises ValueError as `read` does.
        """
        context = _find_entry(document, "contexts", document.get("current-context"))["context"]
        cluster = _find_entry(document, "clusters", context["cluster"])["cluster"]
        user = _find_entry(document, "users", context["user"])["user"]
        token_file = user.get("tokenFile")
        return cls(
            server=cluster["server"].rstrip("/"),
            certificate_authority=_content(cluster, "certificate-authority", folder) or b"",
            client_certificate=_content(user, "client-certificate", folder),
            client_key=_content(user, "client-key", folder),
            token=(folder / token_file).read_text() if token_file else user.get("token"),
        )

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS settings of a connection, or True if the server uses plain HTTP."""
        if not self.server.startswith("https://"):
            return True
        context = ssl.create_default_context(cadata=self.certificate_authority.decode())
        # Key identifiers, which Python requires from 3.13 on, are missing in older clusters' CAs.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.client_certificate and self.client_key:
            # The ssl module loads certificates only from files.
            with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
                pem.write(self.client_certificate + b"\n" + self.client_key)
                pem.flush()
                context.load_cert_chain(pem.name)
        return context


def make_kubeconfig(
    name: str, server: str, certificate_authority: bytes, user: Mapping[str, str], **context: str
) -> str:
    """Return a kubeconfig of one context, `name`; `context` holds further fields of it."""
    authority = base64.b64encode(certificate_authority).decode()
    cluster = {"server": server, "certificate-authority-data": authority}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
        },
        sort_keys=False,
    )


def _find_entry(document: Mapping[str, Any], kind: str, name: str | None) -> Mapping[str, Any]:
    for entry in document.get(kind) or []:
        if entry["name"] == name:
            return dict(entry)
    raise ValueError(f"the kubeconfig has no entry {name!r} among its {kind}")


def _content(section: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    if encoded := section.get(f"{key}-data"):
        return base64.b64decode(str(encoded))
    if named := section.get(key):
        return (folder / str(named)).read_bytes()
    return None
