"""Fixtures for all tests of the Pulumi program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
from botocore.client import BaseClient
from moto import mock_aws
from pulumi.runtime import resource
from pulumi.runtime.proto import source_pb2
from pulumi.runtime.resource_hooks import StubResourceHook

from infra.clusterapi import ClusterApi, ClusterLocation, ClusterUnreachableError
from tests.infra.knownaws import Account, Entries


@pytest.fixture(scope="session")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program that a real cluster needs, the AWS CLI; no test runs it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "aws").write_text("#!/bin/sh\nexit 1\n")
    (folder / "aws").chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def programs(program_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the program that a real cluster needs to the path."""
    monkeypatch.setenv("PATH", f"{program_folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def no_stack_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not record where each resource was created, which takes a fifth of a program's run."""
    monkeypatch.setattr(resource, "_get_stack_trace", source_pb2.StackTrace)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Provide an empty AWS account."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    # Omits the thousands of objects that every account has and no test reads. They take seconds per
    # test.
    for name in ("MOTO_IAM_LOAD_MANAGED_POLICIES", "MOTO_EC2_LOAD_DEFAULT_AMIS"):
        monkeypatch.setenv(name, "false")
    # moto intercepts the clients of botocore. For programs that call AWS by `requests`, it would
    # also register 1,700 patterns of URLs for each test.
    monkeypatch.setattr("moto.core.models.RESPONSES_METHODS", ())
    made = Account()
    monkeypatch.setattr(BaseClient, "_make_api_call", made.answering(BaseClient._make_api_call))
    with mock_aws():
        yield made


@pytest.fixture
def entries(account: Account, monkeypatch: pytest.MonkeyPatch) -> Entries:
    """Provide a cluster in AWS, and nothing else that the program reads."""
    made = Entries(account)

    def silent(location: ClusterLocation, **_: object) -> ClusterApi:
        raise ClusterUnreachableError(f"no answer from {location.cluster_name}")

    monkeypatch.setattr(ClusterApi, "find", silent)
    monkeypatch.setattr(
        ClusterLocation, "client", lambda location, service: made.client(location, service)
    )
    return made


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Any], Any]]:
    """Record hooks by name: mocks cannot call them."""
    made: dict[str, Callable[[Any], Any]] = {}

    def hook(name: str, callback: Callable[[Any], Any]) -> StubResourceHook:
        made[name] = callback
        return StubResourceHook(name)

    monkeypatch.setattr(pulumi, "ResourceHook", hook)
    return made
