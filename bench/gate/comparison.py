"""The rules of the gate: how far answers may differ from earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.gate.answers import Answer

MAX_TOTAL, MAX_FAMILY = 1.005, 1.02
"""The highest ratio of the cost now to the cost before, of all worlds and of one family."""

MAX_EVICTIONS = 1.03
"""The highest ratio of the evictions in all worlds."""

MAX_CPU = 1.2
"""The highest ratio of the CPU time in all worlds."""

MIN_GRANTED = 0.98
"""The lowest ratio of the preferences granted in a family, as the sum of their weights."""

TINY = 1e-9

Answers = Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Row:
    """The worlds of one family, or of all: each name with its answers before and now."""

    family: str
    pairs: Mapping[str, tuple[Answer, Answer]]

    @classmethod
    def of(cls, family: str, before: Answers, now: Answers) -> Row:
        """Return the worlds that have both answers."""
        return cls(family, {n: (before[n], now[n]) for n in now if n in before})

    @classmethod
    def total(cls, rows: Sequence[Row]) -> Row:
        """Return the worlds of all families."""
        return cls("total", {f"{r.family} {n}": p for r in rows for n, p in r.pairs.items()})

    @property
    def comparable(self) -> list[tuple[Answer, Answer]]:
        """The pairs of answers that place equally many pods, so that costs can be compared."""
        return [pair for pair in self.pairs.values() if pair[0].placed == pair[1].placed]

    def sums(self, field: str) -> tuple[float, float]:
        """Return the sums of a field of the answers before and now."""
        compares = field in ("cost", "granted")
        pairs = self.comparable if compares else list(self.pairs.values())
        before, now = (sum(getattr(pair[side], field) for pair in pairs) for side in (0, 1))
        return before, now

    def ratio(self, field: str) -> float:
        """Return the ratio of the sums of a field, now to before."""
        return ratio(*self.sums(field))

    def equal(self, field: str) -> str:
        """Return how many answers are equal in a field, as `k of n`."""
        equal = sum(getattr(b, field) == getattr(n, field) for b, n in self.pairs.values())
        return f"{equal} of {len(self.pairs)}"


def ratio(before: float, now: float) -> float:
    """Return now / before; 1 if both are 0."""
    if before > TINY:
        return now / before
    return 1.0 if now <= TINY else float("inf")


def broken_rules(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each rule that the answers of the families break."""
    for row in rows:
        yield from _above(row, "cost", MAX_FAMILY)
        if row.ratio("granted") < MIN_GRANTED:
            yield f"{row.family}: granted {row.ratio('granted') - 1:+.2%}"
        for name, (before, now) in row.pairs.items():
            if now.placed < before.placed:
                yield f"{row.family} {name}: {now.placed} pods placed instead of {before.placed}"
            yield from (f"{row.family} {name}: rule broken: {text}" for text in now.findings)
    total = Row.total(rows)
    yield from _above(total, "cost", MAX_TOTAL)
    yield from _above(total, "evictions", MAX_EVICTIONS)
    if total.sums("cpu")[0]:
        yield from _above(total, "cpu", MAX_CPU)


def _above(row: Row, field: str, most: float) -> Iterator[str]:
    if row.ratio(field) > most:
        yield f"{row.family}: {field} {row.ratio(field) - 1:+.2%}, at most {most - 1:+.1%}"


def table(rows: Sequence[Row], before: str) -> Table:
    """Return the rows and their total as a table; `before` names the earlier commit."""
    drawn = Table(title=f"{before} / now", header_style="bold")
    for title in ("family", "worlds", "$", "ratio", "worst", "evictions", "pods placed", "CPU s"):
        drawn.add_column(title, justify="left" if title == "family" else "right")
    for title in ("CPU ratio", "identical", "same causes"):
        drawn.add_column(title, justify="right")
    for row in (*rows, Row.total(rows)):
        drawn.add_row(
            row.family,
            str(len(row.pairs)),
            "{:.3f} / {:.3f}".format(*row.sums("cost")),
            f"{row.ratio('cost'):.4f}",
            f"{max((ratio(b.cost, n.cost) for b, n in row.comparable), default=1):.4f}",
            "{} / {}".format(*row.sums("evictions")),
            "{} / {}".format(*row.sums("placed")),
            "{:.1f} / {:.1f}".format(*row.sums("cpu")),
            f"{row.ratio('cpu'):.2f}" if row.sums("cpu")[0] else "",
            row.equal("digest"),
            row.equal("texts"),
        )
    return drawn
