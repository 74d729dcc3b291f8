"""Service account tokens of a pod, in files that are renewed before they expire."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from testbed.kube.client import TRANSIENT, KubeClient, Object

log = logging.getLogger(__name__)

API_SECONDS = 3607  # marks a pod's own token; the API server extends it for old clients
RENEW_AT = 0.8  # share of the lifetime, as in a kubelet
RETRY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """One projected token; without an audience it is for the API server."""

    path: Path
    audience: str | None = None
    lifetime_seconds: int = API_SECONDS

    async def write(self, kube: KubeClient, pod: Object) -> float:
        """Fetch a token bound to the pod; return the seconds until its renewal."""
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [self.audience] if self.audience else [],
                "expirationSeconds": self.lifetime_seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        namespace = f"/api/v1/namespaces/{metadata['namespace']}"
        answer = await kube.create(f"{namespace}/serviceaccounts/{account}/token", request)
        write_atomically(self.path, answer["status"]["token"])
        expires = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        return RENEW_AT * (expires - datetime.now(UTC)).total_seconds()

    async def renew(self, kube: KubeClient, pod: Object, first: float) -> None:
        """Renew the token forever; the first renewal is due in `first` seconds."""
        due = first
        while True:
            await asyncio.sleep(due)
            try:
                due = await self.write(kube, pod)
            except TRANSIENT as exc:
                log.warning("token %s was not renewed: %s", self.path, exc)
                due = RETRY_SECONDS


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, so that readers never see partial content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}")
    written.touch(mode=0o600)
    written.write_text(text)
    written.replace(path)
