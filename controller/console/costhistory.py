"""The cost of a cluster in the last 24 h, from the Prometheus that scrapes its controller."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import aiohttp
import msgspec

from controller.console.feed import LONGEST_HISTORY, Point

COST = "sum(max by (nodepool) (karpenter_nodepools_cost_total{%s}))"
"""The PromQL query of the cluster's cost, in $/h. Karpenter exposes the same metric. `max`, because
every replica of the controller may expose it."""

LOWER_BOUND = "max(joiner_cluster_lower_bound_dollars_per_hour{%s})"

STEP = timedelta(days=1) / LONGEST_HISTORY
DEADLINE = timedelta(seconds=10)
"""How long a query may take; the page is served only afterwards."""


class HistoryError(Exception):
    """Prometheus cannot be reached, or did not answer a query; the message says why."""


class _Series(msgspec.Struct):
    values: Sequence[tuple[float, str]] = ()


class _Data(msgspec.Struct):
    result: Sequence[_Series] = ()


class _Answer(msgspec.Struct):
    """The answer of Prometheus' HTTP API to a range query."""

    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


async def read(url: str, until: datetime, selector: str = "") -> list[Point]:
    """Return the cost of the cluster in the 24 h before `until`, oldest point first.

    A point is the time in RFC 3339, the cost, and the lower bound on the cost of nodes for the same
    pods; both are in $/h. The lower bound is None if Prometheus has none for the time.

    `selector` has label matchers, such as `cluster="prod"`, for a Prometheus of several clusters.

    Raises:
        HistoryError: Prometheus cannot be reached, or did not answer a query.

    """
    if not url.startswith(("http://", "https://")):
        raise HistoryError("the URL must begin with http:// or https://")
    timeout = aiohttp.ClientTimeout(total=DEADLINE.total_seconds())
    async with aiohttp.ClientSession(timeout=timeout) as session:
        costs = await _range(session, url, COST % selector, until)
        bounds = await _range(session, url, LOWER_BOUND % selector, until)
    return [
        (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}", cost, bounds.get(time))
        for time, cost in costs.items()
    ]


async def _range(
    session: aiohttp.ClientSession, url: str, query: str, until: datetime
) -> dict[float, float]:
    """Return the values of a query without labels, by Unix time."""
    parameters = {
        "query": query,
        "start": str((until - timedelta(days=1)).timestamp()),
        "end": str(until.timestamp()),
        "step": str(STEP.total_seconds()),
    }
    try:
        async with session.get(
            f"{url.rstrip('/')}/api/v1/query_range", params=parameters
        ) as response:
            answer = msgspec.json.decode(await response.read(), type=_Answer)
    except TimeoutError as error:
        raise HistoryError(f"no response from Prometheus within {DEADLINE.seconds} s") from error
    except msgspec.DecodeError as error:
        raise HistoryError(
            "the response is not from the HTTP API of Prometheus; check the URL"
        ) from error
    except aiohttp.ClientError as error:
        raise HistoryError(str(error)) from error
    if answer.error:
        raise HistoryError(answer.error)
    return {time: float(value) for series in answer.data.result for time, value in series.values}
