"""Objects that the API server accepts or writes can be decoded, also unusual ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apiserver.errors import UnreadableError
from controller.kube import decoding


@pytest.mark.parametrize("kind", [kinds.POD, kinds.NODE], ids=lambda kind: kind.plural)
@pytest.mark.parametrize("status", ["true", "", "Degraded"])
def test_a_condition_with_any_status_hides_no_object(kind: Kind[Any], status: str) -> None:
    condition = {"type": "example.com/ready", "status": status}
    body = {"metadata": {"name": "a"}, "status": {"conditions": [condition]}}

    decoded = decoding.readable(kind, msgspec.json.encode(body))

    assert decoded is not None
    assert [c.status for c in decoded.status.conditions] == [status]
    assert not decoded.status.conditions[0].is_true


def test_an_object_with_an_unexpected_format_is_an_error_of_the_api_server() -> None:
    body = {"metadata": {"name": "a"}, "spec": {"taints": "all of them"}}

    with pytest.raises(UnreadableError, match="the Node has an unexpected format: Expected"):
        decoding.one(kinds.NODE, msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kinds.CSI_NODE, "drivers"), (kinds.LIMIT_RANGE, "limits")],
    ids=["csinodes", "limitranges"],
)
def test_an_empty_list_that_the_api_server_writes_as_null_hides_no_object(
    kind: Kind[Any], field: str
) -> None:
    body = {"metadata": {"name": "a"}, "spec": {field: None}}

    assert decoding.readable(kind, msgspec.json.encode(body)) is not None
