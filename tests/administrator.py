"""A boto3 client with administrator rights in the account of a test cloud."""

from __future__ import annotations

import functools
from typing import Any

import boto3


@functools.cache  # a client of EC2 takes 0.1 s
def client(endpoint: str, service: str) -> Any:
    """Return a boto3 client for a service, in the region of the test clouds."""
    return boto3.client(
        service,
        region_name="us-west-2",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
