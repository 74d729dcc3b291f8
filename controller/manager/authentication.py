"""Whether the API server accepts the controller's credentials.

The token of a pod names its ServiceAccount's UID. If the ServiceAccount is deleted and created
again, the API server refuses the token with status 401, until kubelet renews it after up to 48
minutes. Only a new pod gets a new token sooner. A missing right is status 403 instead.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

REFUSED_FOR = timedelta(minutes=3)
"""How long the API server may refuse the credentials before the process ends. Restarts and crash
loops are what users and alerts see of a pod. An API server that starts may refuse every token for
some seconds."""

CHECK = timedelta(seconds=5)
"""How often to check whether `REFUSED_FOR` has passed."""

REMEDY = (
    "if the ServiceAccount was deleted and created again, its pods need new tokens: restart them "
    "with `kubectl rollout restart`"
)

log = logging.getLogger(__name__)


class CredentialsRefusedError(RuntimeError):
    """The API server has not accepted the controller's credentials for `REFUSED_FOR`."""


@dataclass(slots=True)
class Authentication:
    """Observes the status of every response of the API server."""

    _refused_since: float | None = None
    """When (`loop.time`) the credentials were refused first; None while they are accepted."""

    def observe(self, status: int) -> None:
        """Take the status of a response, 0 without a response."""
        if status == HTTPStatus.UNAUTHORIZED:
            if self._refused_since is None:
                self._refused_since = asyncio.get_running_loop().time()
                log.error(
                    "the API server does not accept the controller's credentials (401 "
                    "Unauthorized), so the controller cannot act; retrying: %s",
                    REMEDY,
                )
        elif status and self._refused_since is not None:
            self._refused_since = None
            log.info("the API server accepts the controller's credentials again")

    @property
    def problems(self) -> tuple[str, ...]:
        """What readiness waits for: accepted credentials, or nothing."""
        if self._refused_since is None:
            return ()
        return ("the API server to accept the controller's credentials (401 Unauthorized)",)

    async def watch(self) -> None:
        """Check until cancelled.

        Raises:
            CredentialsRefusedError: the credentials were refused for `REFUSED_FOR`.

        """
        while True:
            await asyncio.sleep(CHECK.total_seconds())
            now, since = asyncio.get_running_loop().time(), self._refused_since
            if since is not None and now - since >= REFUSED_FOR.total_seconds():
                minutes = REFUSED_FOR // timedelta(minutes=1)
                raise CredentialsRefusedError(
                    f"the API server has not accepted the controller's credentials for {minutes} "
                    f"minutes (401 Unauthorized): {REMEDY}"
                )
