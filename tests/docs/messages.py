"""Render docs/reference/messages.md: every event, condition and error that users can see.

`messages.yaml` contains the meanings and remedies. `test_messages.py` compares it with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

MEANINGS = Path(__file__).parent / "messages.yaml"

OBJECTS = ("Pod", "Node", "NodeClaim", "NodePool", "EC2NodeClass", "Disruption")
"""The kinds with events, in the order of the page."""

HEAD = """\
# Messages: events, conditions and errors

Look up here what a message means and what to do. Start with what you have:

- [an event](#events), from `kubectl describe` or `kubectl get events`
- [a condition](#conditions), from the `status` of an object such as a NodeClaim or NodePool
- [an error of AWS](#errors-of-aws): a reason in a condition, an event, or the controller's log
- [an error of Pulumi](#errors-of-pulumi), from `pulumi preview`, `up`, `refresh` or `destroy`
- [an error of the controller](#errors-of-the-controller), from its log or the command `joiner`

† marks what only Joiner has. All other reasons are Karpenter's and mean the same.

`tests/docs/messages.yaml` is the source of this page. `make reference` renders it, and a test
compares it with the code.
"""

CONDITIONS = """\
## Conditions

`kubectl get <kind> <name> -o yaml` shows them under `status.conditions`. The first row of each
condition says what *True* means. The reason of a condition that is True is the condition's name,
unless the table has another one.
"""

AWS = """\
## Errors of AWS

These reasons appear in the conditions `Launched` of a NodeClaim, `NodeRegistrationHealthy` of a
NodePool, and `ValidationSucceeded` and `LaunchSucceeded` of an EC2NodeClass. They also appear at
the end of the event `LaunchFailed`, and in the controller's log.
"""

STACK = """\
## Errors of Pulumi

Pulumi prints the message of an error without its name. The table is in the order in which the
errors can appear.
"""

COMMANDS = """\
## Errors of the controller

They appear in the controller's log, or in the output of the command `joiner`.
"""

Entry = Mapping[str, Any]


def meanings() -> Mapping[str, Any]:
    """Return the contents of messages.yaml."""
    loaded: Mapping[str, Any] = yaml.safe_load(MEANINGS.read_text())
    return loaded


def page() -> str:
    """Return the page as Markdown."""
    known = meanings()
    parts = [
        HEAD,
        "## Events\n",
        *_events(known["events"]),
        CONDITIONS,
        *_conditions(known["conditions"], known["rolled_up"]),
        AWS,
        table(("reason", "meaning", "what to do"), _rows(known["aws"])),
        STACK,
        table(("when", "meaning", "what to do", "name in the code"), _refusals(known["stack"])),
        COMMANDS,
        table(("error", "when", "meaning", "what to do"), _rows(known["commands"], "shown")),
    ]
    return "\n".join(parts)


def _events(known: Mapping[str, Entry]) -> Iterator[str]:
    for kind in OBJECTS:
        own = {reason: entry for reason, entry in known.items() if kind in entry["objects"]}
        article = "an" if kind.startswith("E") else "a"
        yield f"### An event on {article} {kind}\n"
        yield table(("reason", "type", "meaning", "what to do"), _rows(own, "type"))


def _conditions(
    known: Mapping[str, Mapping[str, Entry]], rolled_up: Mapping[str, Entry]
) -> Iterator[str]:
    for kind, conditions in known.items():
        article = "an" if kind.startswith("E") else "a"
        yield f"### A condition of {article} {kind}\n"
        header = ("condition", "status", "reason", "meaning", "what to do")
        rows = [row for type_, entry in conditions.items() for row in _of(type_, entry, rolled_up)]
        yield table(header, rows)


def _of(type_: str, entry: Entry, rolled_up: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of one condition."""
    yield _named(type_, entry), "", "", entry["meaning"], ""
    if "aws" in entry:
        where = "one of [these](#errors-of-aws)"
        yield (
            "",
            entry["aws"],
            where,
            "AWS returned an error, or did not respond.",
            "Look up the reason under [errors of AWS](#errors-of-aws).",
        )
    reasons = {**entry.get("reasons", {}), **(rolled_up if "rolled_up" in entry else {})}
    for row in _rows(reasons, "status"):
        reason, status, *rest = row
        yield "", status, reason, *rest


def _rows(known: Mapping[str, Entry], *columns: str) -> Iterator[tuple[str, ...]]:
    for name, entry in sorted(known.items()):
        cells = (entry[column] for column in columns)
        yield _named(name, entry), *cells, entry["meaning"], entry["remedy"]


def _refusals(known: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
    for name, entry in known.items():
        yield entry["shown"], entry["meaning"], entry["remedy"], f"`{name}`"


def _named(name: str, entry: Entry) -> str:
    return f"`{name}`{' †' if entry.get('own') else ''}"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
