"""The AWS provider of the program: always explicit, never Pulumi's default provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra.config.settings import StackConfig

SERVICES = ("ec2", "ecr", "eks", "events", "iam", "sqs", "ssm", "sts")
"""The AWS APIs that the program calls, by the names of their endpoints in the provider."""


def aws_provider(
    config: StackConfig, *, installation: str, after: Sequence[pulumi.Resource] = ()
) -> aws.Provider:
    """Return the AWS provider of the stack's region.

    Args:
        config: the stack's settings.
        installation: value of the tag on every resource that the provider creates.
        after: resources that are created before, and deleted after, every resource of the
            provider.

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
