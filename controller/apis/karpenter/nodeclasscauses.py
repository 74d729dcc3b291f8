"""Why an EC2NodeClass is not ready, and what to change.

`Ready` names only conditions, and the messages of some of them are Karpenter's word for word. The
texts here add the causes, for events and for the conditions of other objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.apis.karpenter.ec2nodeclass import READY_WHEN, EC2NodeClass, SelectorTerm
from controller.apis.kubernetes.conditions import Condition

DEPENDENCIES_NOT_READY = "DependenciesNotReady"
"""The reason of a condition that waits for other conditions of the EC2NodeClass."""

NO_AMIS = "AMINotFound"
NO_SUBNETS = "SubnetsNotFound"
NO_SECURITY_GROUPS = "SecurityGroupsNotFound"


def causes(node_class: EC2NodeClass) -> str:
    """Return the conditions that keep an EC2NodeClass from being ready, each with its cause."""
    blocking = [c for c in node_class.status.conditions if c.type in READY_WHEN and not c.is_true]
    roots = [c for c in blocking if c.reason != DEPENDENCIES_NOT_READY]
    return "; ".join(
        f"{c.type}={c.status}" + (f": {explain(node_class, c)}" if c.message else "")
        for c in roots or blocking
    )


def explain(node_class: EC2NodeClass, condition: Condition) -> str:
    """Return a condition's message; if nothing matches a selector, with the terms and a remedy."""
    spec = node_class.spec
    selectors = {
        NO_AMIS: (
            "amiSelectorTerms",
            spec.ami_selector_terms,
            "Correct the terms; the AMI must be in this region, and shared with this account",
        ),
        NO_SUBNETS: (
            "subnetSelectorTerms",
            spec.subnet_selector_terms,
            "Add the tags to a subnet, or change the terms",
        ),
        NO_SECURITY_GROUPS: (
            "securityGroupSelectorTerms",
            spec.security_group_selector_terms,
            "Add the tags to a security group, or change the terms",
        ),
    }
    if condition.reason not in selectors:
        return condition.message
    field, terms, remedy = selectors[condition.reason]
    return f"{condition.message}; spec.{field}: {terms_text(terms)}. {remedy}"


def terms_text(terms: Iterable[SelectorTerm]) -> str:
    """Return selector terms as text for a message."""
    return "; ".join(", ".join(_words(term)) or "an empty term" for term in terms)


def _words(term: SelectorTerm) -> Iterator[str]:
    named: Mapping[str, str] = {
        "alias": term.alias,
        "id": term.id,
        "name": term.name,
        "owner": term.owner,
        "ssmParameter": term.ssm_parameter,
        "ownerID": term.owner_id,
    }
    yield from (f"{key} {value}" for key, value in named.items() if value)
    yield from (f"tag {key}={value}" for key, value in sorted(term.tags.items()))
