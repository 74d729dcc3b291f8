"""The provider of AWS, always named, never implied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra.config import StackConfig

SERVICES = ("ec2", "ecr", "eks", "events", "iam", "sqs", "ssm", "sts")
"""The AWS APIs the program speaks to, as the provider calls their endpoints."""


def aws_provider(
    config: StackConfig, *, installation: str, after: Sequence[pulumi.Resource] = ()
) -> aws.Provider:
    """Return the provider of AWS in the stack's region.

    Everything made with it is made after `after`, gone before `after` goes, and bears the tag
    of the installation.
    """
    endpoint: dict[str, Any] = {}
    if config.aws_endpoint:
        every = dict.fromkeys(SERVICES, config.aws_endpoint)
        endpoint = {
            "endpoints": [aws.ProviderEndpointArgs(**every)],
            "skip_credentials_validation": True,
            "skip_metadata_api_check": True,
            "skip_region_validation": True,
            "skip_requesting_account_id": True,
        }
    return aws.Provider(
        "aws",
        region=config.region,
        default_tags=aws.ProviderDefaultTagsArgs(
            tags={**config.tags, labels.TAG_INSTALLATION: installation}
        ),
        **endpoint,
        opts=pulumi.ResourceOptions(depends_on=list(after)),
    )
