"""An AWS answer without a required field counts as no answer."""

from __future__ import annotations

from typing import Any

import pytest

from controller.aws.errors import UnreachableError
from controller.aws.session import Session
from tests.aws.conftest import REGION


class Client:
    """A client of boto3 that answers every operation with the same."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def __getattr__(self, operation: str) -> Any:
        return lambda **_: self._answer

    def get_paginator(self, operation: str) -> Client:
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return [self._answer]


def session(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Session:
    asking = Session(region=REGION)
    monkeypatch.setattr(asking, "_client", lambda service: Client(answer))
    return asking


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        pytest.param({"Errors": []}, "Instances", id="whether anything was launched"),
        pytest.param({"Instances": [{"InstanceType": "m5.large"}]}, "InstanceIds", id="what was"),
    ],
)
async def test_an_incomplete_createfleet_response_leaves_the_launch_uncertain(
    answer: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreachableError, match=missing):
        await session(answer, monkeypatch).call("ec2", "create_fleet")


async def test_a_createfleet_response_without_instances_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer: dict[str, Any] = {"Instances": [], "Errors": [{"ErrorCode": "Unsupported"}]}
    assert await session(answer, monkeypatch).call("ec2", "create_fleet") == answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="no list"),
        pytest.param({"Reservations": [{"Instances": [{"InstanceId": "i-1"}]}]}, id="half a row"),
    ],
)
async def test_incomplete_instance_descriptions_lead_to_no_conclusion(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = session(answer, monkeypatch)
    with pytest.raises(UnreachableError, match="incomplete"):
        await asking.pages("ec2", "describe_instances", "Reservations")


async def test_an_empty_list_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = session({"Reservations": []}, monkeypatch)
    assert await asking.pages("ec2", "describe_instances", "Reservations") == []
