"""A test cloud on a loopback port, and boto3 clients that call it like AWS."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.state.world import Settings

ADMIN = ("testing", "testing", None)


@dataclass(frozen=True)
class Aws:
    """Creates clients for one set of credentials, without retries."""

    url: str
    credentials: tuple[str, str, str | None] = ADMIN

    @functools.cache  # noqa: B019  # each module has a few; a client of EC2 takes 0.1 s
    def client(self, service: str, region: str = "us-west-2") -> Any:
        key, secret, token = self.credentials
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=30),
        )

    def signed_by(self, credentials: tuple[str, str, str | None]) -> Aws:
        return Aws(self.url, credentials)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    settings = Settings(pending=0.05, shutting_down=0.05, terminated_visible=30.0)
    with Cloud(settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def aws(cloud: Cloud) -> Aws:
    return Aws(cloud.url)


@pytest.fixture(scope="module")
def control(cloud: Cloud) -> CloudControl:
    return CloudControl(cloud.url)


@pytest.fixture(scope="module")
def ec2(aws: Aws) -> Any:
    return aws.client("ec2")


def eventually(condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    """Wait until a condition is true and return its value."""
    deadline = time.monotonic() + seconds
    while not (held := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
    return held
