"""Every command is readable on a terminal of 80 columns: nothing is cut."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.parity import worlds
from controller.__main__ import main
from controller.offline.commandline import write_tables
from controller.offline.reporter import Table
from tests.disruption.test_consolidation import pods, world
from tests.offline.nodegroups import cluster, first_pool
from tests.offline.test_questions import world_with

NODE = "ip-10-128-128-5.eu-central-1.compute.internal"
POD = "checkout-payments-worker-7c9f8bd5c6-xk2vw"


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Print as on a terminal without colours that is 80 columns wide."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)


def protected() -> dict[str, Any]:
    """Return a cluster whose long names are those of a real one."""
    made = world((NODE, "small", pods("web", 2)), ("b", "small", pods("b", 1)))
    pod = made["pods"][0]
    pod["metadata"] |= {"name": POD, "annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    return made


def grouped() -> dict[str, Any]:
    made: dict[str, Any] = cluster()
    return {**made, "nodePools": [first_pool()]}


def too_large() -> dict[str, Any]:
    pod = worlds.pod(POD, cpu=500_000, memory=512)
    return world_with(pod, worlds.pod("web", cpu=500, memory=512))


@pytest.mark.parametrize(
    ("command", "made", "shown"),
    [
        ("cost {}", grouped, ["5.1960", "3,793", "13", "`joiner", "advise`"]),
        ("cost {} -o wide", grouped, ["5.1960", "instance", "volumes", "address", "fee"]),
        ("advise {} --obstacles 2", grouped, ["5.196", "4.332", "-17%"]),
        (f"explain node {NODE} {{}}", protected, [NODE, f"default/{POD}", "do-not-disrupt"]),
        ("disrupt {}", protected, ["Underutilized", "Commands"]),
        ("solve {}", too_large, ["default", "0.0960", "unschedulable"]),
        (f"explain pod {POD} {{}}", too_large, [POD, "too small", "(largest:"]),
    ],
)
def test_no_line_is_wider_than_the_terminal_and_no_value_is_cut(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    made: Any,
    shown: list[str],
) -> None:
    path = tmp_path / "w"
    path.write_text(json.dumps(made()))

    assert main(command.format(path).split(), {}) in (0, 1)

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line.rstrip()) > 80] == []
    text = "\n".join(lines)
    assert "…" not in text
    for value in shown:
        assert value in text


def test_in_a_pipe_a_table_has_at_most_120_columns_and_a_sentence_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: False)
    path = tmp_path / "w"
    path.write_text(json.dumps(grouped()))

    assert main(["advise", str(path), "--obstacles", "3"], {}) == 0

    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines if line.startswith(("┃", "│"))) <= 120
    (discounts,) = [line for line in lines if "Savings Plans" in line]
    assert discounts.endswith("whether or not its nodes remain.")


def test_a_table_that_does_not_fit_becomes_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    write_tables([Table("Nodes", ("node", "why"), ((NODE, f"a{'b' * 60} and more"),))])

    printed = capsys.readouterr().out
    assert re.fullmatch(rf"Nodes\n  node  {NODE}\n  why   ab+ and more\n\n+", printed)
