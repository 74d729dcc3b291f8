"""What the program finds in AWS before it makes anything."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
from botocore.exceptions import ClientError

from infra.clusterapi import ClusterLocation

NOWHERE = "other"
"""The name of a cluster that EKS does not have."""

NEW = "fresh"
"""The name of one that it does not have yet."""


MADE_AT = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
"""When the cluster was made."""


@functools.cache
def connection(service: str, region: str) -> Any:
    """Return a client; to make one costs more than all that is asked of it."""
    return boto3.client(service, region)


def absent(name: str) -> ClientError:
    """Say what EKS says of what it does not have."""
    return ClientError(
        {"Error": {"Code": "ResourceNotFoundException", "Message": name}}, "Describe"
    )


@dataclass
class Entries:
    """What EKS knows: the cluster, its access entries and Pod Identity associations."""

    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the access entry by principal, of the association by service account."""

    def client(self, location: ClusterLocation, service: str) -> Any:
        """Return a client of moto's, whatever the endpoint."""
        made = connection(service, location.region)
        if service == "eks":
            made.describe_access_entry = self.entry
            made.list_pod_identity_associations = self.associations
            made.describe_pod_identity_association = self.association
            made.describe_addon = self.addon
            made.describe_cluster = self.cluster
            made.list_nodegroups = self.node_groups
        return made

    def associations(self, **asked: str) -> dict[str, Any]:
        """List the one there is by the account's name."""
        account = asked["serviceAccount"]
        known = [account] if account in self.tags else []
        return {"associations": [{"associationId": account} for account in known]}

    def cluster(self, *, name: str) -> dict[str, Any]:
        """Describe the cluster, NOWHERE and NEW aside; moto would take longer than all the rest."""
        if name in (NOWHERE, NEW):
            raise absent(name)
        return {"cluster": {"createdAt": MADE_AT}}

    def node_groups(self, **_asked: str) -> dict[str, Any]:
        """List none: where they are is asked elsewhere."""
        return {"nodegroups": []}

    def addon(self, **asked: str) -> dict[str, Any]:
        """Describe none: there is none."""
        raise absent(asked["addonName"])

    def association(self, **asked: str) -> dict[str, Any]:
        """Describe one."""
        return {"association": {"tags": self.tags[asked["associationId"]]}}

    def entry(self, *, clusterName: str, principalArn: str) -> dict[str, Any]:  # noqa: N803
        """Answer as EKS does."""
        assert clusterName != NOWHERE
        if principalArn not in self.tags:
            raise absent(principalArn)
        return {"accessEntry": {"tags": self.tags[principalArn]}}
