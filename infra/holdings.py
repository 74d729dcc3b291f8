"""What a stack has made that could be somebody else's, and that it does not go unawares.

A setting that goes from `create` to `existing` takes a thing out of the program, and the engine
deletes what is no longer in it: a cluster, or the role by which every node runs. So what was made
is remembered, and a change that would have it deleted is refused, in a preview already, until it
is said to be meant. Nor is anything deleted that bears the tag of the installation no more:
somebody else has taken it over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import DiffResult, Resource

from controller.apis import labels
from infra.clusterapi import ClusterLocation
from infra.config import PROJECT
from infra.ekscluster import EksCluster
from infra.ownership import described_tags, tags_of
from infra.statefulprovider import StatefulProvider

TITLES: Mapping[str, str] = {
    "cluster": "the cluster {0}, with its network and everything that runs there,",
    "network": "the network {0} of the cluster",
    "nodeRole": "the role {0} of the nodes",
    "controllerRole": "the role {0} of the controller",
    "queue": "the interruption queue {0}, with its rules,",
}
"""What may be held, by the key of the setting that says so; a network goes with its cluster."""

_ROLE = tuple(f"aws:iam/{kind}:" for kind in ("policy", "role", "rolePolicy"))
STAYING: Mapping[str, tuple[str, ...]] = {
    "cluster": ("aws:",),
    "nodeRole": (*_ROLE, "aws:iam/rolePolicyAttachment:"),
    "controllerRole": (*_ROLE, "aws:iam/rolePolicyAttachment:"),
    "queue": ("aws:sqs/", "aws:cloudwatch/"),
    "nodes": ("pulumi-python:dynamic:",),
}
"""Beginnings of the types that stay with what stays. Instance profiles, and how pods become a
role, are the stack's all the same; nodes stay where nobody ends them."""


class WouldBeDeletedError(Exception):
    """Something that the stack has made would go; says how to keep it, and how to let it go."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([*problems, "Nothing has been changed."]))


class Holdings(Resource):
    """Remembers what the stack has made; refuses when it would be deleted unawares.

    One comes before what is made, and so looks at each change before anything happens. Another
    comes right after it, and so goes right before: it looks whose things are when a stack ends.
    """

    def __init__(
        self,
        name: str,
        location: ClusterLocation | EksCluster,
        made: Mapping[str, pulumi.Input[str]],
        *,
        installation: str,
        fixed: Mapping[str, str] | None = None,
        retained: Sequence[str] = (),
        confirmed: Sequence[str] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Remember.

        Args:
            name: of the resource.
            location: of the cluster.
            made: names of what is made, by keys of `TITLES`.
            installation: value of the tag on what the program has made itself.
            fixed: settings that make another cluster when they change, by key.
            retained: keys of what stays in AWS when it leaves the stack.
            confirmed: keys of what may be deleted, or made anew.
            opts: of the resource.

        """
        props = {
            **location.location,
            "installation": installation,
            "made": dict(made),
            "fixed": dict(fixed or {}),
            "retained": list(retained),
            "confirmed": list(confirmed),
        }
        super().__init__(_HoldingsProvider(), name, props, opts)


class _HoldingsProvider(StatefulProvider):
    """Compares what was made with what will be, and looks whose it is."""

    kind = "holdings"

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        going = dict(_going(olds, news))
        problems = [*_unconfirmed(olds, news, going), *_foreign(olds, going)]
        if problems:
            raise WouldBeDeletedError(problems)
        return found

    def end(self, props: dict[str, Any]) -> None:
        kept = props["retained"]
        held = {key: name for key, name in props["made"].items() if key not in kept}
        if problems := list(_foreign(props, held)):
            raise WouldBeDeletedError(problems)


def staying(key: str, retaining: Sequence[str]) -> pulumi.ResourceOptions:
    """Return the options by which what a key stands for stays in AWS, where it is to."""

    def retained(
        made: pulumi.ResourceTransformationArgs,
    ) -> pulumi.ResourceTransformationResult | None:
        if not made.type_.startswith(STAYING[key]):
            return None
        stays = pulumi.ResourceOptions(retain_on_delete=True)
        return pulumi.ResourceTransformationResult(
            made.props, pulumi.ResourceOptions.merge(made.opts, stays)
        )

    return pulumi.ResourceOptions(transformations=[retained] if key in retaining else [])


def _going(olds: Mapping[str, Any], news: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what will no longer be there, or not under its name."""
    for key, name in olds["made"].items():
        if key in olds["retained"]:
            continue
        after = news["made"].get(key)
        is_known = isinstance(after, str) or key not in news["made"]
        if is_known and after != name:
            yield key, name


def _unconfirmed(
    olds: Mapping[str, Any], news: Mapping[str, Any], going: Mapping[str, str]
) -> Iterator[str]:
    for key in going.keys() - news["made"].keys() - set(news["confirmed"]):
        yield (
            f"{PROJECT}:{key} was create and would be existing: {TITLES[key].format(going[key])} "
            f"would be deleted. If it is to stay, set {PROJECT}:{key} back to create and "
            f"{PROJECT}:retainOnDelete to {key}, run `pulumi up`, and then set it to existing; if "
            f"it is to go, set {PROJECT}:confirmDelete to {key}"
        )
    for key, before in olds["fixed"].items():
        after = news["fixed"].get(key)
        if after not in (None, before) and "cluster" not in news["confirmed"]:
            yield (
                f"{PROJECT}:{key} was {before} and would be {after}: the cluster would be made "
                f"anew, and all that runs there would go. Set {PROJECT}:{key} back; or, if that is "
                f"meant, {PROJECT}:confirmDelete to cluster"
            )


def _foreign(props: Mapping[str, Any], going: Mapping[str, str]) -> Iterator[str]:
    """Say which of the things that go are no longer the installation's."""
    location, installation = ClusterLocation.of(props), props["installation"]
    for key, name in going.items():
        tags = tags_of(key, name, location)
        if tags is not None and tags.get(labels.TAG_INSTALLATION) != installation:
            yield (
                f"{TITLES[key].format(name)} would be deleted, and is not this installation's any "
                f"more: it is tagged {described_tags(tags)}. Tag it "
                f"{labels.TAG_INSTALLATION}={installation} if it may go, or take it out of the "
                "stack (`pulumi state delete` with its URN, which `pulumi stack --show-urns` "
                "tells)"
            )
