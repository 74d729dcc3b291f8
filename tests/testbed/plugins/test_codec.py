"""Property bags are unchanged after encoding and decoding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from testbed.plugins.codec import (
    SECRET_SIGNATURE,
    SIGNATURE,
    UNKNOWN,
    UNKNOWN_SIGNATURE,
    Secret,
    decode_bag,
    encode_bag,
    has_secret,
    has_unknown,
    keep_secret,
    plain,
)


def wire(**properties: Any) -> Any:
    return json_format.ParseDict(properties, struct_pb2.Struct())


SCALARS = st.one_of(
    st.text().filter(lambda text: text != UNKNOWN_SIGNATURE),
    st.booleans(),
    st.integers(-(2**52), 2**52),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(UNKNOWN),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.text().filter(lambda key: key != SIGNATURE), inner),
        inner.map(Secret),
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key != SIGNATURE), VALUES))
def test_a_property_bag_survives_a_round_trip(bag: dict[str, Any]) -> None:
    assert decode_bag(encode_bag(bag)) == bag


def test_whole_numbers_come_back_as_integers() -> None:
    bag = decode_bag(wire(size=3, ratio=0.5))

    assert [repr(bag["size"]), repr(bag["ratio"])] == ["3", "0.5"]


def test_a_number_too_large_for_a_double_stays_a_float() -> None:
    assert isinstance(decode_bag(wire(size=2.0**60))["size"], float)


def test_secrets_and_unknowns_are_recognized_by_their_signatures() -> None:
    bag = decode_bag(
        wire(password={SIGNATURE: SECRET_SIGNATURE, "value": ["x"]}, arn=UNKNOWN_SIGNATURE)
    )

    assert bag == {"password": Secret(["x"]), "arn": UNKNOWN}


def test_none_values_are_omitted_at_any_depth() -> None:
    assert decode_bag(encode_bag({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}


def test_an_unsupported_value_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="object"):
        encode_bag({"a": object()})


def test_an_unknown_stays_identical_in_a_deep_copy() -> None:
    assert copy.deepcopy({"a": [UNKNOWN]})["a"][0] is UNKNOWN


def test_the_text_of_a_secret_does_not_reveal_it() -> None:
    assert "hunter2" not in repr({"password": Secret("hunter2")})


def test_plain_unwraps_secrets_at_any_depth_and_keeps_unknowns() -> None:
    assert plain({"a": Secret({"b": [Secret(1), UNKNOWN]})}) == {"a": {"b": [1, UNKNOWN]}}


def test_unknowns_and_secrets_are_found_at_any_depth() -> None:
    assert has_unknown({"a": [Secret({"b": UNKNOWN})]})
    assert has_secret({"a": [{"b": Secret(1)}]})
    assert not has_unknown({"a": [1]})
    assert not has_secret({"a": [UNKNOWN]})


def test_an_output_at_the_path_of_a_secret_input_is_secret() -> None:
    outputs = keep_secret({"tags": {"a": "changed", "b": "2"}}, {"tags": {"a": Secret("1")}})

    assert outputs == {"tags": {"a": Secret("changed"), "b": "2"}}


def test_a_secret_text_is_secret_wherever_it_occurs() -> None:
    outputs = keep_secret(
        {"tagsAll": {"a": "hunter2", "b": "open"}, "list": ["hunter2"]},
        {"tags": {"a": Secret("hunter2"), "b": "open"}},
    )

    assert outputs == {
        "tagsAll": {"a": Secret("hunter2"), "b": "open"},
        "list": [Secret("hunter2")],
    }


def test_a_secret_inside_a_list_makes_the_whole_list_secret() -> None:
    assert keep_secret({"l": ["a", "b"]}, {"l": ["a", Secret("z")]}) == {"l": Secret(["a", "b"])}
