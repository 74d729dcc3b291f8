"""A world with a fault is answered or rejected, without a traceback or an endless run."""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.__main__ import main
from tests.offline.breaking import WRONG, base_worlds, broken, places

STEPS = 3_000_000
"""Calls within one answer; a good world of this size takes less than a tenth of that."""

BASES = base_worlds()


@cache
def _places(base: int) -> dict[str, list[tuple[str | int, ...]]]:
    return places(BASES[base])


@contextmanager
def ending() -> Iterator[None]:
    """Fail a test that makes too many calls: it would never end."""
    made = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal made
        made += 1
        if made > STEPS:
            sys.setprofile(None)
            pytest.fail(f"no answer within {STEPS:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def asked(text: str, *options: str) -> tuple[int, str, str]:
    """Run `joiner solve` on a world; return the exit code and both outputs."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "world.json"
        path.write_text(text)
        with ending(), redirect_stdout(out), redirect_stderr(err):
            code = main(["solve", str(path), *options], {})
    return code, out.getvalue(), err.getvalue()


@st.composite
def faults(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a valid world, one of its paths, and a wrong value for it."""
    base = draw(st.integers(0, len(BASES) - 1))
    shown = draw(st.sampled_from(sorted(_places(base))))
    path = draw(st.sampled_from(_places(base)[shown]))
    value = draw(st.sampled_from(range(len(WRONG))))
    return f"{shown} of world {base} = {str(WRONG[value])[:60]}", broken(
        BASES[base], path, WRONG[value]
    )


# Garbage collection during this test may warn of resources that earlier tests did not close.
@pytest.mark.long
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@settings(max_examples=400)
@given(fault=faults(), output=st.sampled_from(["json", "table"]))
def test_a_world_with_one_fault_is_solved_or_refused(
    fault: tuple[str, dict[str, Any]], output: str
) -> None:
    where, world = fault

    code, out, err = asked(json.dumps(world), "--output", output)

    assert code in (0, 1, 2), where
    if code != 2:
        assert out, where
    else:
        assert re.fullmatch(r"/\S+\.json: \S+.*: .+\n", err), where


@pytest.mark.parametrize("number", range(len(BASES)))
def test_the_worlds_are_valid_before_they_are_broken(number: int) -> None:
    code, _, err = asked(json.dumps(BASES[number]))

    assert code in (0, 1), err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"pods": [], "instanceTypes": {"file": "\\u0000"}}', "not a path"),
        ('{"pods": [], "instanceTypes": {"file": "."}}', "Is a directory"),
    ],
)
def test_a_file_that_is_not_a_world_is_refused(text: str, message: str) -> None:
    code, _, err = asked(text)

    assert code == 2
    assert message in err
