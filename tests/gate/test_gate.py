"""The gate lets equal and slightly different answers pass, and names each rule that is broken."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gate import __main__ as gate
from bench.gate.answers import CHECKOUT, Answer
from bench.gate.comparison import Answers, Row, broken_rules, table

BEFORE = {
    "clusters": {"1": Answer(cost=10.0, evictions=100, digest="a", cpu=1.0)},
    "few": {"1": Answer(cost=1.0, placed=5, granted=4.0, digest="b", cpu=1.0)},
    "mixed": {"1": Answer(cost=400.0, placed=500, digest="c", cpu=10.0)},
}


def broken(family: str, **changed: object) -> list[str]:
    """Return the rules that are broken if one answer changes."""
    now = {name: dict(answers) for name, answers in BEFORE.items()}
    now[family]["1"] = replace(now[family]["1"], **changed)  # type: ignore[arg-type]
    return list(broken_rules([Row.of(one, BEFORE[one], now[one]) for one in now]))


def test_equal_answers_pass() -> None:
    assert broken("few") == []


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("mixed", {"cost": 401.9}),
        ("few", {"cost": 1.019}),
        ("clusters", {"evictions": 103}),
        ("mixed", {"cpu": 12.0}),
        ("few", {"placed": 6, "cost": 2.0}),
    ],
)
def test_answers_within_the_limits_pass(family: str, changed: dict[str, object]) -> None:
    assert broken(family, **changed) == []


@pytest.mark.parametrize(
    ("family", "changed", "sentence"),
    [
        ("mixed", {"cost": 402.5}, "total: cost +0.61%, at most +0.5%"),
        ("few", {"cost": 1.021}, "few: cost +2.10%, at most +2.0%"),
        ("clusters", {"evictions": 104}, "total: evictions +4.00%, at most +3.0%"),
        ("mixed", {"cpu": 13.0}, "total: cpu +25.00%, at most +20.0%"),
        ("few", {"granted": 3.0}, "few: granted -25.00%"),
        ("few", {"placed": 4, "cost": 0.5}, "few 1: 4 pods placed instead of 5"),
        ("few", {"findings": ("taint: p",)}, "few 1: rule broken: taint: p"),
    ],
)
def test_an_answer_beyond_a_limit_breaks_its_rule(
    family: str, changed: dict[str, object], sentence: str
) -> None:
    assert broken(family, **changed) == [sentence]


def test_cpu_time_is_not_judged_against_frozen_answers() -> None:
    before = {"1": Answer(cost=1.0)}

    assert list(broken_rules([Row.of("few", before, {"1": Answer(cost=1.0, cpu=9.0)})])) == []


def test_frozen_answers_are_read_back(tmp_path: Path) -> None:
    gate.freeze(tmp_path / "frozen.json", "0123abcd", BEFORE)

    commit, answers = gate.frozen_answers(tmp_path / "frozen.json")

    assert commit == "0123abcd"
    assert answers["few"]["1"] == replace(BEFORE["few"]["1"], cpu=0.0)


def test_the_table_counts_identical_answers() -> None:
    now: Answers = {"1": replace(BEFORE["few"]["1"], digest="other")}

    drawn = table([Row.of("few", BEFORE["few"], now)], "0123abcd")

    assert [next(iter(column.cells)) for column in drawn.columns][-2:] == ["0 of 1", "1 of 1"]


@pytest.mark.process
def test_a_checkout_answers_in_a_process_of_its_own() -> None:
    answers = gate.answers_of(CHECKOUT, "recorded", full=False)

    assert answers["docs/world.json"].placed == 3
    assert answers["docs/world.json"].cpu > 0


@pytest.mark.process
def test_another_commit_is_checked_out_and_removed() -> None:
    with gate.worktree("HEAD") as other:
        assert (other / "bench").is_dir()
    listed = subprocess.run(
        ["git", "worktree", "list"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout

    assert str(other) not in listed
