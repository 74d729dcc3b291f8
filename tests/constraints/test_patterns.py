"""Patterns: what they find, and that none takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.constraints.patterns import PatternError, is_found


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^A1?0+$", "A100", True),
        ("^A1?0+$", "xA100", False),
        ("a100|h[12]00", "nvidia-h200-sxm", True),
        ("^(?:a|b){2,3}$", "aba", True),
        ("^(?:a|b){2,3}$", "abab", False),
        (r"\bgpu\b", "my gpu!", True),
        (r"\bgpu\b", "mygpu", False),
        (r"^\d{1,3}(\.\d+)*$", "10.2.3", True),
        (r"^[^\s,]+$", "a,b", False),
        (r"^[a-f\d\-]+$", "ab-12", True),
        ("^[[:upper:]][[:^digit:]]$", "Ax", True),
        ("(?i)^TESLA", "tesla-t4", True),
        (r"(?i)^[^a]\D$", "A1", False),
        (r"(?i)^[b-d]\D$", "Cx", True),
        ("^a.c$", "a\nc", False),
        ("", "", True),
        ("^(a*)*$", "aaa", True),
        (r"\x41", "A", True),
        ("a{,2}", "a{,2}", True),
        ("[]a]", "]", True),
    ],
)
def test_a_pattern_finds_what_re2_does(pattern: str, text: str, found: bool) -> None:
    assert is_found(pattern, text) is found


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "[a", "*a", "a{3,1}", "(?x)a", r"\q", "(a{100}){100}", "[[:huh:]]", "a\\"],
)
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        is_found(pattern, "a")


def test_no_pattern_goes_back_over_its_steps() -> None:
    """Python's own engine would still be at it."""
    assert not is_found("^(a+)+(a|a)*b$", "a" * 500)


@given(
    st.recursive(
        st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w"]),
        lambda inner: st.one_of(
            st.builds("({}{})".format, inner, inner),
            st.builds("({}|{})".format, inner, inner),
            st.builds("({})?".format, inner),
            st.builds("({}){{1,2}}".format, inner),
        ),
        max_leaves=6,
    ),
    st.text("abc", max_size=6),
)
def test_whole_texts_match_as_with_pythons_engine(pattern: str, text: str) -> None:
    assert is_found(f"^{pattern}$", text) is (re.fullmatch(pattern, text) is not None)
