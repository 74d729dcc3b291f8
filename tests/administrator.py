"""Who may do everything in the account of a test cloud."""

from __future__ import annotations

from typing import Any

import boto3


def client(endpoint: str, service: str) -> Any:
    """A client of boto3, in the region in which test clouds are."""
    return boto3.client(
        service,
        region_name="us-west-2",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
