"""What the program finds in AWS before it creates anything."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import boto3
from botocore.exceptions import ClientError

from infra.clusterapi import ClusterLocation

NOWHERE = "other"
"""The name of a cluster that does not exist in EKS."""

NEW = "fresh"
"""The name of a cluster that does not exist in EKS yet."""


MADE_AT = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
"""Creation time of the cluster."""


@functools.cache
def connection(service: str, region: str) -> Any:
    """Return a client; cached, because creating one takes longer than all its calls."""
    return boto3.client(service, region)


def absent(name: str) -> ClientError:
    """Return EKS's error for a resource that does not exist."""
    return ClientError(
        {"Error": {"Code": "ResourceNotFoundException", "Message": name}}, "Describe"
    )


READS = ("Describe", "Get", "List")
"""How the names of operations begin that change nothing."""

CONSTANT = ("events", "iam", "sqs", "sts")
"""The services that answer every read of an empty account alike.

EC2 does so if it finds nothing; its default VPC differs.
"""


@dataclass
class Account:
    """The AWS account of one test; it keeps the answers to reads for the accounts of later tests.

    The program reads two dozen names before it creates anything, and moto takes a tenth of the
    program's time to answer that none of them exists.
    """

    current: ClassVar[Account]
    """The account of the test that runs."""

    is_empty: bool = True
    """Whether no operation has changed the account yet."""

    def __post_init__(self) -> None:
        Account.current = self

    def answering(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method by which every client of botocore asks AWS."""

        def answer(client: Any, operation: str, parameters: Mapping[str, Any]) -> Any:
            self.is_empty = self.is_empty and operation.startswith(READS)
            service = client.meta.service_model.service_name
            if not self.is_empty or service not in (*CONSTANT, "ec2"):
                return ask(client, operation, parameters)
            key = (service, client.meta.region_name, operation, json.dumps(parameters))
            if key not in _ANSWERS:
                try:
                    answered = ask(client, operation, parameters)
                except ClientError as exc:
                    answered = exc
                if service == "ec2" and _has_found(answered):
                    return answered
                _ANSWERS[key] = answered
            kept = _ANSWERS[key]
            if isinstance(kept, ClientError):
                # Each client has its own classes of errors.
                kind = getattr(client.exceptions, type(kept).__name__, ClientError)
                raise kind(kept.response, operation)
            return copy.deepcopy(kept)

        return answer


def _has_found(answered: Any) -> bool:
    is_error = isinstance(answered, ClientError)
    return not is_error and any(isinstance(found, list) and found for found in answered.values())


_ANSWERS: dict[tuple[str, ...], Any] = {}
"""Answers of an empty account, and its errors, by request."""


@dataclass
class Entries:
    """The state of EKS: the cluster, its access entries and Pod Identity associations."""

    account: Account
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags of an access entry by principal, and of an association by service account."""

    def client(self, location: ClusterLocation, service: str) -> Any:
        """Return a moto client, whatever the endpoint."""
        made = connection(service, location.region)
        if service == "eks":
            made.describe_access_entry = self.entry
            made.list_pod_identity_associations = self.associations
            made.describe_pod_identity_association = self.association
            made.describe_addon = self.addon
            made.describe_cluster = self.cluster
            made.list_nodegroups = self.node_groups
            made.list_fargate_profiles = self.fargate_profiles
        return made

    def associations(self, **asked: str) -> dict[str, Any]:
        """List the service account's association, if there is one."""
        account = asked["serviceAccount"]
        known = [account] if account in self.tags else []
        return {"associations": [{"associationId": account} for account in known]}

    def cluster(self, *, name: str) -> dict[str, Any]:
        """Describe every cluster except NOWHERE and NEW.

        moto would take longer than the rest of the test.
        """
        if name in (NOWHERE, NEW):
            raise absent(name)
        return {"cluster": {"createdAt": MADE_AT}}

    def node_groups(self, **_asked: str) -> dict[str, Any]:
        """Return no node groups: other tests cover where nodes are."""
        return {"nodegroups": []}

    def fargate_profiles(self, **_asked: str) -> dict[str, Any]:
        """Return no Fargate profiles."""
        return {"fargateProfileNames": []}

    def addon(self, **asked: str) -> dict[str, Any]:
        """Raise the error for a missing add-on: there is none."""
        raise absent(asked["addonName"])

    def association(self, **asked: str) -> dict[str, Any]:
        """Describe an association."""
        return {"association": {"tags": self.tags[asked["associationId"]]}}

    def entry(self, *, clusterName: str, principalArn: str) -> dict[str, Any]:  # noqa: N803
        """Describe an access entry, or raise as EKS does."""
        assert clusterName != NOWHERE
        if principalArn not in self.tags:
            raise absent(principalArn)
        entry = {"type": "EC2_LINUX", "tags": self.tags[principalArn], "createdAt": MADE_AT}
        return {"accessEntry": entry}
