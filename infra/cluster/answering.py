"""Waits until the API server of a new cluster answers.

Pulumi's Kubernetes provider decides with its first request whether the cluster is reachable, for
the whole operation. The name of a new endpoint may resolve minutes after EKS calls the cluster
active.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable

import pulumi

PATIENCE_SECONDS = 300.0
"""As long as Pulumi's own package `eks` waits."""

POLL_SECONDS = 2.0
REQUEST_SECONDS = 10.0


def endpoint_that_answers(
    endpoint: pulumi.Input[str], authority: pulumi.Input[str]
) -> pulumi.Input[str]:
    """Return the URL of an API server; of one that this program creates, once it answers.

    Args:
        endpoint: URL of the API server.
        authority: its CA certificate: PEM, base64-encoded.

    """
    if isinstance(endpoint, str) or pulumi.runtime.is_dry_run():
        return endpoint
    answering: pulumi.Output[str] = pulumi.Output.all(endpoint, authority).apply(
        lambda known: wait_until_answering(*known)
    )
    return answering


async def wait_until_answering(
    endpoint: str,
    authority: str,
    *,
    does_answer: Callable[[str, str], bool] | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> str:
    """Return the endpoint once it answers, or after `patience_seconds`.

    In the latter case, the provider that connects next reports the failure.
    """
    ask = does_answer or _does_answer
    for _ in range(int(patience_seconds / poll_seconds)):
        if await asyncio.to_thread(ask, endpoint, authority):
            break
        await asyncio.sleep(poll_seconds)
    return endpoint


def _does_answer(endpoint: str, authority: str) -> bool:
    """Return whether the API server answers, whatever the status."""
    try:
        context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
        url = f"{endpoint}/healthz"
        urllib.request.urlopen(url, timeout=REQUEST_SECONDS, context=context).close()  # noqa: S310
    except urllib.error.HTTPError:
        return True
    except (OSError, binascii.Error, UnicodeDecodeError):
        return False
    return True
