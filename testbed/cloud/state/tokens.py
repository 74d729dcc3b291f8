"""Service account tokens: which service account a token belongs to.

The cluster checks the token. Without a cluster, the token's claims are trusted.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from testbed.kube.kubeconfig import Kubeconfig


class TokenRefusedError(Exception):
    """The token is not valid for the audience, or the cluster cannot be asked."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The service account that a token authenticates."""

    namespace: str
    name: str
    issuer: str
    pod: str = ""

    @property
    def subject(self) -> str:
        """The `sub` claim."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


class TokenReviewer(Protocol):
    """A way to check service account tokens."""

    def review(self, token: str, *, audience: str) -> ServiceAccount:
        """Return the service account of a token.

        Raises TokenRefusedError if the token is not valid.
        """
        ...


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token, unverified. Raises TokenRefusedError if it is not a JWT."""
    try:
        payload = token.split(".")[1]
        padded = payload + "=" * (-len(payload) % 4)
        claims = json.loads(base64.urlsafe_b64decode(padded))
    except (IndexError, ValueError) as error:
        raise TokenRefusedError("the token is not a JSON web token") from error
    if not isinstance(claims, dict):
        raise TokenRefusedError("the token carries no claims")
    return claims


def _service_account(subject: str, claims: dict[str, Any]) -> ServiceAccount:
    parts = subject.split(":")
    if len(parts) != 4 or parts[:2] != ["system", "serviceaccount"]:
        raise TokenRefusedError(f"the token's subject {subject!r} is not a service account")
    pod = claims.get("kubernetes.io", {}).get("pod", {}).get("name", "")
    return ServiceAccount(parts[2], parts[3], str(claims.get("iss", "")), pod)


class ClaimsReviewer:
    """Trusts a token's own claims: for test clouds without a cluster."""

    def review(self, token: str, *, audience: str) -> ServiceAccount:
        """Return the service account of a token; its signature is not checked.

        Raises:
            TokenRefusedError: the token has another audience, has expired, or names no service
                account.

        """
        claims = claims_of(token)
        audiences = claims.get("aud", [])
        if audience not in ([audiences] if isinstance(audiences, str) else audiences):
            raise TokenRefusedError(f"the token is not meant for {audience}")
        if float(claims.get("exp", 0)) < time.time():
            raise TokenRefusedError("the token has expired")
        return _service_account(str(claims.get("sub", "")), claims)


class ClusterReviewer:
    """Checks tokens with the cluster's TokenReview API."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def review(self, token: str, *, audience: str) -> ServiceAccount:
        """Return the service account that the API server reports for a token.

        Raises TokenRefusedError if the API server does not accept the token for the audience, or
        does not answer.
        """
        claims = claims_of(token)
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = self._post(review).get("status", {})
        if not status.get("authenticated"):
            raise TokenRefusedError(status.get("error") or "the cluster does not know the token")
        if audience not in status.get("audiences", []):
            raise TokenRefusedError(f"the token is not meant for {audience}")
        return _service_account(status["user"]["username"], claims)

    def _post(self, review: dict[str, Any]) -> dict[str, Any]:
        config = Kubeconfig.read(self._kubeconfig)
        bearer = {"Authorization": f"Bearer {config.token.strip()}"} if config.token else {}
        request = urllib.request.Request(  # noqa: S310
            f"{config.server}/apis/authentication.k8s.io/v1/tokenreviews",
            data=json.dumps(review).encode(),
            headers={"Content-Type": "application/json", **bearer},
        )
        tls = config.tls()
        context = None if isinstance(tls, bool) else tls
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310
                content: dict[str, Any] = json.load(answer)
                return content
        except urllib.error.URLError as error:
            raise TokenRefusedError(f"the cluster did not answer: {error}") from error
