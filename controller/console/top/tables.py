"""What `top` shows, as rows of text: pure functions of what the page shows too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Content = Mapping[str, Any]
"""What `study.page` or `study.plan` returns, decoded."""

GROUPINGS = ("", "pool", "zone", "type", "capacityType")
"""The keys by which nodes can be grouped; "" for one group."""

TITLES = {"pool": "NodePool", "zone": "zone", "type": "instance type", "capacityType": "capacity"}

HOURS_A_MONTH = 730


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table; `key` names what it stands for, empty for the heading of a group."""

    cells: tuple[str, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: titles of the columns, rows, and the columns that are aligned to the right."""

    titles: tuple[str, ...]
    lines: tuple[Line, ...]
    right: frozenset[int] = frozenset()


NODE_TITLES = (
    "node", "NodePool", "type", "zone", "capacity", "age", "$/h", "CPU", "CPU %", "memory",
    "memory %", "pods", "next", "blocked by",
)  # fmt: skip

_SORT_KEYS: tuple[Callable[[Content], Any], ...] = (
    lambda node: node["name"],
    lambda node: (node["pool"], node["name"]),
    lambda node: (node["type"], node["name"]),
    lambda node: (node["zone"], node["name"]),
    lambda node: (node["capacityType"], node["name"]),
    lambda node: node["created"],
    lambda node: node["price"],
    lambda node: node["cpu"][1],
    lambda node: _share(node["cpu"]),
    lambda node: node["memory"][1],
    lambda node: _share(node["memory"]),
    lambda node: len(node["pods"]),
)
"""How nodes are sorted by each of the first columns."""

SORTABLE = len(_SORT_KEYS)


def nodes(
    page: Content,
    plan: Content | None,
    *,
    group: str = "",
    column: int = 1,
    is_reversed: bool = False,
    wanted: str = "",
) -> Sheet:
    """Return the nodes whose name, NodePool, type, zone or pods contain the `wanted` text."""
    leaving = {
        name: command["reason"] for command in (plan or {}).get("commands", ())
        for name in command["nodes"]
    }  # fmt: skip
    blocked = (plan or {}).get("blocked", {})
    now = _moment(page["time"])
    shown = sorted(
        (node for node in page["nodes"] if _matches(node, wanted.lower())),
        key=_SORT_KEYS[column],
        reverse=is_reversed,
    )
    groups: defaultdict[str, list[Line]] = defaultdict(list)
    costs: defaultdict[str, float] = defaultdict(float)
    for node in shown:
        name = str(node["name"])
        cells = (
            name,
            node["pool"] or "-",
            node["type"],
            node["zone"],
            node["capacityType"],
            _age(now, node["created"]),
            f"{node['price']:.4f}" if node["price"] else "?",
            f"{node['cpu'][0]:.1f}/{node['cpu'][1]:.1f}",
            f"{_share(node['cpu']):.0%}",
            f"{node['memory'][0]:.0f}/{node['memory'][1]:.0f}Gi",
            f"{_share(node['memory']):.0%}",
            str(len(node["pods"])),
            f"disrupt: {leaving[name]}" if name in leaving else _next(node),
            blocked.get(name, ""),
        )
        key = str(node[group]) if group else ""
        groups[key].append(Line(cells, name))
        costs[key] += node["price"]
    lines: list[Line] = []
    for key in sorted(groups):
        if group:
            heading = f"{TITLES[group]} {key or '-'}: {len(groups[key])} nodes, ${costs[key]:.2f}/h"
            lines.append(Line((heading,)))
        lines += groups[key]
    return Sheet(NODE_TITLES, tuple(lines), frozenset(range(5, 12)))


def pools(page: Content) -> Sheet:
    """Return the NodePools with their cost, limits and budgets."""
    lines = tuple(
        Line(
            (
                pool["name"],
                str(pool["nodes"]),
                f"{pool['cost']:.2f}",
                f"{_share(pool['cpu']):.0%}",
                f"{_share(pool['memory']):.0%}",
                ", ".join(f"{name} {most}" for name, most in pool["limits"].items()) or "none",
                "; ".join(pool["budgets"]) or "none",
                pool["policy"],
            ),
            pool["name"],
        )
        for pool in page["pools"]
    )
    titles = ("NodePool", "nodes", "$/h", "CPU", "memory", "limits", "budgets", "consolidation")
    return Sheet(titles, lines, frozenset({1, 2, 3, 4}))


def pending(plan: Content | None) -> Sheet:
    """Return the pending pods in groups with equal causes."""
    lines = []
    for group in (plan or {}).get("pending", ()):
        names = ", ".join(group["pods"][:3]) + (", …" if group["count"] > 3 else "")
        why = "; ".join(group["causes"]) or f"will run {group['place']}"
        lines.append(Line((str(group["count"]), names, why), names))
    return Sheet(("pods", "names", "cause"), tuple(lines), frozenset({0}))


def decisions(page: Content, plan: Content | None) -> Sheet:
    """Return what would be disrupted now, and the recorded decisions, the newest first."""
    proposed = [("now", "proposed", command) for command in (plan or {}).get("commands", ())]
    recorded = [(each["time"], each["state"], each) for each in page["decisions"]]
    lines = tuple(
        Line(
            (
                time,
                state,
                each["reason"],
                ", ".join(each["nodes"]),
                f"{each['saving']:.4f}",
                str(each["evictions"]),
                each["why"],
            ),
            ", ".join(each["nodes"]),
        )
        for time, state, each in (*proposed, *recorded)
    )
    titles = ("time", "state", "reason", "nodes", "saves $/h", "evictions", "why")
    return Sheet(titles, lines, frozenset({4, 5}))


def pods(page: Content, name: str) -> Sheet:
    """Return the pods of one node."""
    (node,) = [node for node in page["nodes"] if node["name"] == name]
    lines = tuple(
        Line((key, f"{cpu:.2f}", f"{memory:.2f}", "DaemonSet" if is_daemon else ""), key)
        for key, cpu, memory, is_daemon in node["pods"]
    )
    return Sheet(("pod", "CPU", "memory Gi", ""), lines, frozenset({1, 2}))


def headline(page: Content, plan: Content | None) -> str:
    """Return the cluster's totals in one line."""
    parts = [f"${page['cost']:.2f}/h (${page['cost'] * HOURS_A_MONTH:,.0f}/month)"]
    if plan:
        bound = plan["lowerBound"]
        parts.append(f"lower bound ${bound:.2f}")
        if bound:
            parts.append(f"gap {page['cost'] / bound - 1:.0%}")
        parts.append(f"pending {sum(group['count'] for group in plan['pending'])}")
    parts += [
        f"nodes {len(page['nodes'])}",
        f"pods {page['pods']}",
        f"CPU {_share(page['cpu']):.0%}",
        f"memory {_share(page['memory']):.0%}",
    ]
    return " · ".join(parts)


def _matches(node: Content, wanted: str) -> bool:
    if not wanted:
        return True
    texts = (node["name"], node["pool"], node["type"], node["zone"], node["capacityType"])
    return any(wanted in text.lower() for text in texts) or any(
        wanted in pod[0].lower() for pod in node["pods"]
    )


def _share(pair: Sequence[float]) -> float:
    used, most = pair
    return used / most if most else 0.0


def _next(node: Content) -> str:
    return "" if node["state"] == "ready" else str(node["state"])


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _age(now: datetime | None, created: str) -> str:
    born = _moment(created)
    if now is None or born is None:
        return ""
    minutes = int((now - born).total_seconds() // 60)
    if minutes < 60:
        return f"{minutes}m"
    return f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // 1440}d"
