"""Holds requests back so that the API server is not flooded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Throttle:
    """A bucket of `burst` tokens that fills at `qps` per second; 0 means no limit."""

    qps: float
    burst: int
    _tokens: float = field(init=False)
    _filled_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    async def take(self) -> None:
        """Take a token, waiting for it in the order of asking."""
        if not self.qps:
            return
        now = asyncio.get_running_loop().time()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.qps)
        self._filled_at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self.qps)
