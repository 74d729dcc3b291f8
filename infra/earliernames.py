"""What the bundle's resources were called before they were parts of one component.

Everything stood at the root of the stack then, under shorter names. Each resource tells its
former name, so that a stack of that time goes on as it is: nothing in it is made anew.
"""

from __future__ import annotations

import pulumi

from infra.joiner import Joiner

FORMER_PREFIXES = ("crds-", "node-pools-")
"""Of resources that bore the bare names of what they are in the cluster."""


def with_former_name(
    made: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Alias a resource of the component `joiner`, whose parent was the stack itself."""
    former = former_name(made.name)
    if former is None:
        return None
    alias = pulumi.Alias(name=former)
    if isinstance(made.opts.parent, Joiner):
        alias = pulumi.Alias(name=former, parent=None)
    more = pulumi.ResourceOptions(aliases=[alias])
    return pulumi.ResourceTransformationResult(
        made.props, pulumi.ResourceOptions.merge(made.opts, more)
    )


def former_name(name: str) -> str | None:
    """Return what a resource of today's name was called; None where there was none."""
    former = name.removeprefix("joiner-")
    for bare in FORMER_PREFIXES:
        former = former.removeprefix(bare)
    return None if former == name else former
