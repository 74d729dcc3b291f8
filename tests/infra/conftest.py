"""What every test of the program may count on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from moto import mock_aws

from infra.clusterapi import ClusterApi, ClusterLocation, ClusterUnreachableError
from tests.infra.knownaws import Entries


@pytest.fixture(autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have on the path what a real cluster needs: the AWS CLI, and a docker that can build.

    The first is run by nobody here, the second only asked whether it is there.
    """
    folder = tmp_path_factory.mktemp("bin")
    for name, status in {"aws": 1, "docker": 0}.items():
        (folder / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An AWS account of its own, with nothing in it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    # Thousands of things that every account has and nobody here asks for: seconds for each test.
    for name in ("MOTO_IAM_LOAD_MANAGED_POLICIES", "MOTO_EC2_LOAD_DEFAULT_AMIS"):
        monkeypatch.setenv(name, "false")
    with mock_aws():
        yield


@pytest.fixture
def entries(account: None, monkeypatch: pytest.MonkeyPatch) -> Entries:
    """Have the cluster in AWS, and nothing else that the program asks for."""
    made = Entries()

    def silent(location: ClusterLocation, **_: object) -> ClusterApi:
        raise ClusterUnreachableError(f"nobody answers for {location.cluster_name}")

    monkeypatch.setattr(ClusterApi, "find", silent)
    monkeypatch.setattr(
        ClusterLocation, "client", lambda location, service: made.client(location, service)
    )
    return made
