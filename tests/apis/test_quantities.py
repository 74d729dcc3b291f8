"""Quantities are parsed as Kubernetes parses them, including unusual ones."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis.kubernetes.quantities import MAX_AMOUNT, amount, parse


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("100m", 100),
        ("2", 2000),
        ("1.5Gi", 1_610_612_736_000),
        ("0.1Ki", 102_400),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("1E", 10**21),
        (".5", 500),
        ("5.", 5000),
        ("+5", 5000),
        ("-5", -5000),
        ("1n", 1),
        ("-1n", -1),
        ("1500u", 2),
        ("1e-999", 1),
        ("0e999999999999999999", 0),
        (1.5, 1500),
        (1e22, MAX_AMOUNT),
        ("1e999", MAX_AMOUNT),
        ("-1e999", -MAX_AMOUNT),
        ("9" * 400, MAX_AMOUNT),
        ("10Ei", MAX_AMOUNT),
        ("9223372036854775807", MAX_AMOUNT),
        ("0." + "0" * 400 + "1e401", 1000),
    ],
)
def test_a_quantity_is_rounded_away_from_zero_and_capped(text: str | float, milli: int) -> None:
    assert parse(text) == milli


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1x",
        "NaN",
        "inf",
        "Ki",
        ".",
        "1 ",
        " 1",
        "1K",
        "1e",
        "1e1.5",
        "0x10",
        "1_0",
        "１",
        "--1",
    ],
)
def test_an_invalid_quantity_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity such as 100m, 2 or 1\.5Gi"):
        parse(text)


def test_an_error_quotes_only_the_beginning_of_a_long_text() -> None:
    with pytest.raises(ValueError, match=r"^'x{40}'… is not") as refused:
        parse("x" * 4000)

    assert len(str(refused.value)) < 120


def test_a_negative_quantity_is_refused() -> None:
    assert amount("0") == 0
    with pytest.raises(ValueError, match="'-1n' is negative; allowed are 0 and more"):
        amount("-1n")


@given(st.decimals(min_value=0, max_value=10**15, allow_nan=False, places=3))
def test_decimals_of_three_places_are_exact(number: Decimal) -> None:
    assert parse(f"{number:f}") == int(number * 1000)
