"""The content of `top` as rows of text: pure functions of the content that `web` shows, too.

A line of nodes is computed when it is displayed, so a key press costs the same in every cluster,
apart from the order of the nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from controller.apis.wording import with_count
from controller.console.feed import Content

GROUPINGS = ("", "pool", "zone", "type", "capacityType")
"""The keys by which nodes can be grouped; "" for one group."""

TITLES: Mapping[str, str] = {
    "pool": "NodePool",
    "type": "type",
    "zone": "zone",
    "capacityType": "capacity",
    "cpu": "CPU",
    "memory": "memory",
}

STATES = ("launching", "registered", "terminating")
"""The states of nodes that are not ready, in the order in which a node has them."""

HOURS_A_MONTH = 730

LEAST_NAME, LEAST_CAUSE = 12, 20
"""The widths to which the columns of names and causes may shrink, in characters."""

CAUSE_PART = 4
"""A quarter of the terminal belongs to the causes before columns that say less."""

OUTSIDE = "no NodePool"
"""What blocks the disruption of a node that Joiner does not manage."""

GAP = "  "
ASCENDING, DESCENDING = " ↑", " ↓"

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table.

    `key` identifies its object; it is empty for the heading of a group, which has one cell.
    `detail` is shown below the table while the cursor is on the row; it has what may be wider than
    the screen. `is_marked` is True for a node that would be disrupted now, or is being deleted, and
    for a NodePool that is not ready.
    """

    cells: Cells
    key: str = ""
    detail: str = ""
    is_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table whose lines are computed when they are displayed.

    `right` are the columns that are aligned to the right, and `empty` is the text that is shown if
    there are no lines.
    """

    titles: Cells
    widths: Sequence[int]
    keys: Sequence[str]
    line: Callable[[int], Line]
    right: frozenset[int] = frozenset()
    empty: str = ""

    @property
    def width(self) -> int:
        """The width of a line, in characters."""
        return sum(self.widths) + len(GAP) * (len(self.widths) - 1)

    def text(self, cells: Cells) -> str:
        """Return cells as a line of text; a heading's one cell may be of any width."""
        if len(cells) == 1:
            return cells[0]
        last = len(cells) - 1
        return GAP.join(
            cell.rjust(width)
            if number in self.right
            else _cut(cell, width if number < last else len(cell)).ljust(width)
            for number, (cell, width) in enumerate(zip(cells, self.widths, strict=True))
        )

    @property
    def fixed_width(self) -> int:
        """The width of the first column, which stays on the screen while the others scroll."""
        return self.widths[0] + len(GAP) if len(self.widths) > 1 else 0


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def sheet_of(
    titles: Cells, lines: Sequence[Line], *, right: Sequence[int] = (), empty: str = ""
) -> Sheet:
    """Return a table of lines that are already computed."""
    columns = zip_longest(titles, *(line.cells for line in lines), fillvalue="")
    return Sheet(
        titles=titles,
        widths=[max(map(len, column)) for column in columns],
        keys=[line.key for line in lines],
        line=lines.__getitem__,
        right=frozenset(right),
        empty=empty,
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of nodes: the text and the sort key of a node.

    `width` is the maximum width of numbers; 0 for texts, whose column is as wide as the longest.
    The column with the highest `rank` is left out first on a narrow terminal; 0: never.
    """

    title: str
    text: Callable[[Content, Nodes], str]
    key: Callable[[Content], Any]
    width: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Which nodes are displayed, grouped by a key and sorted by a column.

    They are the nodes of the NodePool `pool` that match the text `wanted`. If either is empty, it
    excludes no node. `column` is an index of `COLUMNS`.
    """

    pool: str = ""
    group: str = ""
    column: int = 1
    is_reversed: bool = False
    wanted: str = ""


class Nodes:
    """The nodes of a page, arranged in lines; `names` are the shortest unique names."""

    def __init__(self) -> None:
        self.now: datetime | None = None
        self.names: Mapping[str, str] = {}
        self._page: Content = {"nodes": (), "time": ""}
        self._leaving: Mapping[str, str] = {}
        self._blocked: Mapping[str, str] = {}
        self._widths: list[int] = []
        self._texts: dict[str, tuple[Content, str]] = {}

    def update(self, page: Content, plan: Content | None) -> None:
        """Replace the nodes by those of another read of the cluster."""
        nodes = page["nodes"]
        self.now, self.names, self._page = _moment(page["time"]), _short_names(nodes), page
        self._leaving = {
            name: f"disrupt: {command['reason']}"
            for command in (plan or {}).get("commands", ())
            for name in command["nodes"]
        }
        self._blocked = (plan or {}).get("blocked", {})
        self._widths = [
            max(
                len(column.title),
                column.width or max((len(column.text(node, self)) for node in nodes), default=0),
            )
            for column in COLUMNS
        ]

    def sheet(self, arranged: Arrangement, *, columns: int = 0) -> Sheet:
        """Return the table of the nodes.

        `columns` is the width of the terminal in characters: if it is too small, the less important
        columns are left out. 0 leaves out none.
        """
        nodes = [
            node
            for node in self._matching_nodes(arranged.wanted.lower())
            if arranged.pool in ("", node["pool"])
        ]
        nodes.sort(key=COLUMNS[arranged.column].key, reverse=arranged.is_reversed)
        lines = _group_lines(nodes, arranged.group) if arranged.group else nodes
        following = max((14, *map(len, self._leaving.values())))
        why = max((len(OUTSIDE), *map(len, self._blocked.values())))
        least = min(why, max(LEAST_CAUSE, columns // CAUSE_PART))
        shown, own_widths = self._columns(
            columns and max(columns - following - least - 2 * len(GAP), 1),
            arranged.column,
        )
        arrow = DESCENDING if arranged.is_reversed else ASCENDING
        titles = [
            COLUMNS[number].title + (arrow if number == arranged.column else "") for number in shown
        ]
        widths = [max(width, len(title)) for width, title in zip(own_widths, titles, strict=True)]
        return Sheet(
            titles=(*titles, "next", "blocked by"),
            widths=[*widths, following, why],
            keys=["" if isinstance(each, str) else each["name"] for each in lines],
            line=lambda number: self._line(lines[number], shown),
            right=frozenset(index for index, number in enumerate(shown) if COLUMNS[number].width),
            empty=f"no node matches {arranged.wanted or arranged.pool!r} (Escape: all nodes)"
            if arranged.wanted or arranged.pool
            else "the cluster has no nodes",
        )

    def _line(self, node: Content | str, shown: Sequence[int]) -> Line:
        if isinstance(node, str):
            return Line((node,))
        name = node["name"]
        stays = self._blocked.get(name, "") if node["managed"] else OUTSIDE
        why = node["deletion"] or stays
        following = self._leaving.get(name) or self._next(node)
        cells = (COLUMNS[number].text(node, self) for number in shown)
        detail = f"{name}: {why or following or 'stays'}"
        is_marked = name in self._leaving or bool(node["deletion"])
        return Line((*cells, following, why), name, detail, is_marked)

    def _next(self, node: Content) -> str:
        """Return the state of a node that is not ready, or when a ready one expires."""
        if node["state"] != "ready":
            return f"{node['state']} {age(self.now, node['deletedAt'])}".rstrip()
        left = age(_moment(node["expires"]), self._page["time"])
        return f"expires {left}" if left else ""

    def _columns(self, columns: int, sorted_by: int) -> tuple[list[int], list[int]]:
        """Return the columns that fit, and their widths; the sorted one is never left out.

        If the remaining columns do not fit, texts and the names of nodes are shortened.
        """
        shown = list(range(len(COLUMNS)))
        dropped = sorted(
            (number for number in shown if COLUMNS[number].rank and number != sorted_by),
            key=lambda number: -COLUMNS[number].rank,
        )
        used = sum(self._widths) + len(GAP) * len(shown) + len(ASCENDING)
        for number in dropped:
            if columns <= 0 or used <= columns:
                break
            shown.remove(number)
            used -= self._widths[number] + len(GAP)
        widths = [self._widths[number] for number in shown]
        for index in reversed(range(len(shown))):
            if columns and used > columns and not COLUMNS[shown[index]].width:
                width = min(widths[index], max(widths[index] - (used - columns), LEAST_NAME))
                used, widths[index] = used - widths[index] + width, width
        return shown, widths

    def _matching_nodes(self, wanted: str) -> list[Content]:
        if not wanted:
            return list(self._page["nodes"])
        known, self._texts = self._texts, {}
        for node in self._page["nodes"]:
            name = node["name"]
            of, text = known.get(name, ({}, ""))
            self._texts[name] = node, text if of is node else _search_text(node)
        return [node for node, text in self._texts.values() if wanted in text]


def _search_text(node: Content) -> str:
    """Return the texts of a node that a filter searches."""
    texts = (node["name"], node["pool"], node["type"], node["zone"], node["capacityType"])
    return "\n".join((*texts, *(pod[0] for pod in node["pods"]))).lower()


def _group_lines(nodes: Sequence[Content], key: str) -> list[Content | str]:
    """Return the nodes of each group below its heading, in their order."""
    groups: defaultdict[str, list[Content]] = defaultdict(list)
    for node in nodes:
        groups[str(node[key])].append(node)
    lines: list[Content | str] = []
    for name in sorted(groups):
        members = groups[name]
        cost = sum(node["price"] for node in members)
        cpu, memory = (_total(members, resource) for resource in ("cpu", "memory"))
        lines.append(
            f"{TITLES[key]} {name or '-'}: {len(members)} nodes{_unready(members)}, ${cost:.2f}/h, "
            f"CPU {cpu:.0%}, memory {memory:.0%}"
        )
        lines += members
    return lines


def _short_names(nodes: Sequence[Content]) -> dict[str, str]:
    """Return the names of nodes, without their domain if that leaves them distinct."""
    names = {node["name"]: node["name"].partition(".")[0] for node in nodes}
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def pools(page: Content) -> Sheet:
    """Return the NodePools with their cost, limits and budgets."""
    lines = [
        Line(
            (
                pool["name"],
                "NO" if pool["notReady"] else "yes",
                str(pool["nodes"]),
                f"{pool['cost']:.2f}",
                f"{_share(pool['cpu']):.0%}",
                f"{_share(pool['memory']):.0%}",
                ", ".join(f"{name} {most}" for name, most in pool["limits"].items()) or "none",
                "; ".join(pool["budgets"]) or "none",
                pool["policy"],
            ),
            pool["name"],
            f"not ready: {pool['notReady']}"
            if pool["notReady"]
            else f"Enter: the nodes of {pool['name']}",
            bool(pool["notReady"]),
        )
        for pool in page["pools"]
    ]
    titles = (
        "NodePool",
        "ready",
        "nodes",
        "$/h",
        "CPU",
        "memory",
        "limits",
        "budgets",
        "consolidation",
    )
    return sheet_of(titles, lines, right=(2, 3, 4, 5), empty="the cluster has no NodePools")


def pending_sheet(page: Content) -> Sheet:
    """Return the groups of pending pods with equal causes, one line each."""
    lines = []
    for group in page["pending"]:
        names = ", ".join(group["pods"][:3]) + (", …" if group["count"] > 3 else "")
        why = "; ".join(group["causes"])
        if group["place"]:
            why += f"; unless that lasts, will run {group['place']}" if why else ""
            why = why or f"will run {group['place']}"
        why = why or "not evaluated yet …"
        lines.append(Line((str(group["count"]), names, why), group["pods"][0], why))
    titles = ("pods", "names", "cause")
    return sheet_of(titles, lines, right=(0,), empty="no pod is pending")


def group(page: Content, key: str) -> Sheet:
    """Return the causes and the first pods of a group of `pending_sheet`.

    It is the group that lists the pod `key`. If there is none, the table has no lines, and its text
    says that the pods are no longer pending.
    """
    found = next((group for group in page["pending"] if key in group["pods"]), None)
    names = found["pods"] if found is not None else []
    lines = [Line((cause,)) for cause in found["causes"]] if found is not None else []
    lines += [Line((name,), name, name) for name in names]
    if found is not None and found["count"] > len(names):
        lines.append(Line((f"and {found['count'] - len(names)} more",)))
    return sheet_of(("pod",), lines, empty="these pods are no longer pending")


def decisions(page: Content, plan: Content | None) -> Sheet:
    """Return the nodes that would be disrupted now, and the recorded decisions, newest first."""
    proposed = [("now", "proposed", command) for command in (plan or {}).get("commands", ())]
    recorded = [(each["time"], each["state"], each) for each in page["decisions"]]
    lines = [
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
            each["why"],
        )
        for time, state, each in (*proposed, *recorded)
    ]
    titles = ("time", "state", "reason", "nodes", "saves $/h", "evictions", "why")
    nothing = "no node would be disrupted now" if plan else "not evaluated yet …"
    return sheet_of(titles, lines, right=(4, 5), empty=nothing)


def pods(page: Content, name: str) -> Sheet:
    """Return the pods of the node `name`."""
    node = next((node for node in page["nodes"] if node["name"] == name), None)
    if node is None:
        return sheet_of(("pod",), (), empty=f"node {name} no longer exists")
    lines = [
        Line((key, f"{cpu:.2f}", f"{memory:.2f}", "DaemonSet" if is_daemon else ""), key, key)
        for key, cpu, memory, is_daemon in node["pods"]
    ]
    titles = ("pod", "CPU", "memory Gi", "")
    return sheet_of(titles, lines, right=(1, 2), empty=f"no pod runs on {name}")


def pod(facts: Sequence[tuple[str, str]]) -> Sheet:
    """Return the properties of one pod."""
    lines = [Line((name, value), name, value) for name, value in facts]
    return sheet_of(("", ""), lines, empty="the pod no longer exists")


def headline(page: Content, plan: Content | None) -> str:
    """Return the cluster's totals in one line."""
    parts = [
        *_cost_parts(page, plan),
        f"nodes {len(page['nodes'])}{_unready(page['nodes'])}",
        f"pods {page['pods']}",
        f"pending {len(page['pendingPods'])}",
        f"CPU {_share(page['cpu']):.0%}",
        f"memory {_share(page['memory']):.0%}",
    ]
    return " · ".join(parts)


def _cost_parts(page: Content, plan: Content | None) -> list[str]:
    """Return the cost, its lower bound and the gap; nodes outside NodePools count as fixed."""
    if page["nodes"] and page["unpriced"] == len(page["nodes"]):
        return ["prices are not read yet"]
    parts = [f"${page['cost']:.2f}/h (${page['cost'] * HOURS_A_MONTH:,.0f}/month)"]
    if page["unpriced"]:
        parts.append(f"{with_count(page['unpriced'], 'node')} without price")
    bound, fixed = plan["lowerBound"] if plan else None, page["fixed"]
    if bound is None or bound > page["cost"]:  # the bound is of the cluster as it was before
        return [*parts, "lower bound …"]
    if fixed["nodes"] == len(page["nodes"]):
        return [*parts, "no node of a NodePool: `joiner advise` shows what Joiner would save"]
    if bound:
        parts += [f"lower bound ${bound:.2f}", f"gap {page['cost'] / bound - 1:.0%}"]
    if fixed["nodes"]:
        parts.append(f"{with_count(fixed['nodes'], 'node')} outside NodePools fixed")
    return parts


def _unready(nodes: Sequence[Content]) -> str:
    """Return how many nodes are in each state but ready, in parentheses; empty if all are ready."""
    counts = Counter(node["state"] for node in nodes)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    return f" ({', '.join(parts)})" if parts else ""


def age(now: datetime | None, created: str) -> str:
    """Return the time from `created` to `now`, such as `45s`, `3m`, `3h` or `3d`.

    It is empty if either time is unknown.
    """
    born = _moment(created)
    if now is None or born is None:
        return ""
    seconds = max(int((now - born).total_seconds()), 0)
    minutes = seconds // 60
    if minutes < 2:
        return f"{seconds}s"
    if minutes < 60:
        return f"{minutes}m"
    return f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // 1440}d"


def _total(nodes: Sequence[Content], resource: str) -> float:
    pairs = [node[resource] for node in nodes]
    return _share((sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)))


def _share(pair: Sequence[float]) -> float:
    used, most = pair
    return used / most if most else 0.0


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _texts(name: str) -> Column:
    """Return the column of a text; nodes with equal texts are sorted by name."""
    return Column(
        TITLES.get(name, name),
        lambda node, _: node[name] or "-",
        lambda node: (node[name], node["name"]),
    )


def _amounts(resource: str, unit: str, rank: int) -> Column:
    """Return the column of a resource: the requests of the pods, and the allocatable amount."""

    def text(node: Content, _: Nodes) -> str:
        used, most = node[resource]
        return f"{used:.1f}/{most:.0f}{unit}"

    return Column(TITLES[resource], text, lambda node: node[resource][1], 12, rank)


def _shares(resource: str, title: str, rank: int) -> Column:
    """Return the column of the share of a resource that pods request."""
    return Column(
        title,
        lambda node, _: f"{_share(node[resource]):.0%}",
        lambda node: _share(node[resource]),
        5,
        rank,
    )


def _price(node: Content, _: Nodes) -> str:
    return f"{node['price']:.4f}" if node["price"] else "?"


COLUMNS: Sequence[Column] = (
    Column("node", lambda node, of: of.names[node["name"]], lambda node: node["name"]),
    replace(_texts("pool"), rank=1),
    replace(_texts("type"), rank=2),
    replace(_texts("zone"), rank=7),
    replace(_texts("capacityType"), rank=5),
    Column(
        "age", lambda node, of: age(of.now, node["created"]), lambda node: node["created"], 4, 6
    ),
    Column("$/h", _price, lambda node: node["price"], 7),
    _amounts("cpu", "", 9),
    _shares("cpu", "CPU %", 0),
    _amounts("memory", "Gi", 8),
    _shares("memory", "mem %", 4),
    Column("pods", lambda node, _: str(len(node["pods"])), lambda node: len(node["pods"]), 4, 3),
)
"""The columns by which nodes can be sorted. `Nodes.sheet` adds what happens to a node next, and
what blocks its disruption."""
