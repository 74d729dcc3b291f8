"""Schemas that several custom resources share: label keys, requirements, taints, conditions."""

from __future__ import annotations

from collections.abc import Sequence

from controller.apis import labels
from controller.apis.crds.schemas import (
    INT64,
    Schema,
    array,
    default_of,
    fields,
    integer,
    mapping,
    quantity,
    rule,
    string,
)
from controller.apis.karpenter.nodepool import NodeClaimTemplateSpec

NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
QUALIFIED_NAME = rf"^({SUBDOMAIN}\/)?{NAME}$"
LABEL_VALUE = rf"^({NAME})?$"
DURATION = r"^([0-9]+(s|m|h))+$"
DURATION_OR_NEVER = r"^(([0-9]+(s|m|h))+|Never)$"

CORE_LABELS = (labels.CAPACITY_TYPE, labels.NODEPOOL)
AWS_LABELS = (
    labels.EC2NODECLASS,
    *sorted(k for k in labels.WELL_KNOWN_AWS if k.startswith(labels.AWS_GROUP)),
)
_NOT_IN_OVERLAYS = ("instance-tenancy", "capacity-reservation-", "placement-group-")
AWS_OVERLAY_LABELS = tuple(
    key for key in AWS_LABELS if not key.partition("/")[2].startswith(_NOT_IN_OVERLAYS)
)

RESERVED_DOMAINS = {labels.GROUP: CORE_LABELS, labels.AWS_GROUP: AWS_LABELS}
OVERLAY_DOMAINS = {labels.GROUP: CORE_LABELS, labels.AWS_GROUP: AWS_OVERLAY_LABELS}

_NUMERIC = "x.operator in ['Gt', 'Lt', 'Gte', 'Lte']"
_HAS_VALUES = "has(x.values) && size(x.values) > 0"
_ONE_NUMBER = "has(x.values) && size(x.values) == 1 && int(x.values[0]) >= 0"


def key_rules(
    subject: str, *, domains: dict[str, tuple[str, ...]], pool_owned: bool = False
) -> list[Schema]:
    """Return the rules for a label key; `subject` is the CEL variable that holds it.

    `domains` maps each restricted domain to its labels that are allowed. `pool_owned` also
    restricts the label `karpenter.sh/nodepool`. The messages are Karpenter's.
    """
    rules = [
        rule(
            f"{subject} in {list(allowed)!r} || "
            f"!{subject}.matches('^([^/]*[.])?{domain.replace('.', '[.]')}(/|$)')",
            f'label domain "{domain}" is restricted',
        )
        for domain, allowed in domains.items()
    ]
    if pool_owned:
        rules.append(
            rule(f"{subject} != '{labels.NODEPOOL}'", f'label "{labels.NODEPOOL}" is restricted')
        )
    rules.append(
        rule(f"{subject} != '{labels.HOSTNAME}'", f'label "{labels.HOSTNAME}" is restricted')
    )
    return rules


def requirements(
    about: str,
    *,
    key_rules: Sequence[Schema],
    min_values: bool = True,
    of_overlay: bool = False,
) -> Schema:
    """Return the schema of a list of requirements on labels, which are ANDed.

    In a NodeOverlay, the operator NotIn needs values too.
    """
    item = fields(
        "A requirement on a label.",
        required=["key", "operator"],
        key=string("Key of the label.", maximum=316, pattern=QUALIFIED_NAME, rules=key_rules),
        operator=string(
            "Relationship of the label's value to the values. Gt, Lt, Gte and Lte compare whole "
            "numbers.",
            enum=["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"],
        ),
        values=array(
            "Values of the requirement: at least one for In, none for Exists and DoesNotExist, "
            "one whole number for Gt, Lt, Gte and Lte.",
            {"type": "string"},
            kind="atomic",
        ),
    )
    needs_values = ["In", "NotIn"] if of_overlay else ["In"]
    comparisons = "'Gt', 'Lt', 'Gte' or 'Lte'" if of_overlay else "'Gt', 'Lt', 'Gte', or 'Lte'"
    rules = [
        *(
            rule(
                f"self.all(x, x.operator != '{operator}' || ({_HAS_VALUES}))",
                f"requirements with operator '{operator}' must have a value defined",
            )
            for operator in needs_values
        ),
        rule(
            f"self.all(x, !({_NUMERIC}) || ({_ONE_NUMBER}))",
            f"requirements operator {comparisons} must have a single positive integer value",
        ),
    ]
    if min_values:
        item["properties"]["minValues"] = integer(
            "Minimum number of different values of the label among the instance types of a launch.",
            minimum=1,
            maximum=50,
        )
        rules.append(
            rule(
                "self.all(x, x.operator != 'In' || !has(x.minValues) || "
                "(has(x.values) && size(x.values) >= x.minValues))",
                "requirements with 'minValues' must have at least that many values specified in "
                "the 'values' field",
            )
        )
    return array(about, item, maximum=100, kind="atomic", rules=rules)


def taints(about: str) -> Schema:
    """Return the schema of a list of taints."""
    return array(
        about,
        fields(
            "A taint repels pods that do not tolerate it.",
            required=["key", "effect"],
            key=string("Key of the taint.", minimum=1, pattern=QUALIFIED_NAME),
            value=string("Value of the taint.", pattern=QUALIFIED_NAME),
            effect=string(
                "Effect on pods that do not tolerate the taint.",
                enum=["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ),
            timeAdded=string("Time at which the taint was added.", form="date-time"),
        ),
        kind="atomic",
    )


def node_class_reference(*, rules: Sequence[Schema] = ()) -> Schema:
    """Return the schema of a reference to a NodeClass."""

    def part(name: str, about: str, pattern: str | None = None) -> Schema:
        return string(
            about, pattern=pattern, rules=[rule("self != ''", f"{name} may not be empty")]
        )

    return fields(
        "The NodeClass that configures the instances.",
        required=["group", "kind", "name"],
        group=part("group", "API group of the NodeClass: karpenter.k8s.aws.", r"^[^/]*$"),
        kind=part("kind", "Kind of the NodeClass: EC2NodeClass."),
        name=part("name", "Name of the NodeClass."),
        rules=rules,
    )


def expire_after() -> Schema:
    """Return the schema of `expireAfter`."""
    return string(
        "Age at which a node expires and is replaced, such as 720h; Never disables expiration.",
        pattern=DURATION_OR_NEVER,
        default=default_of(NodeClaimTemplateSpec, "expireAfter"),
    )


def termination_grace_period() -> Schema:
    """Return the schema of `terminationGracePeriod`."""
    return string(
        "Maximum time for which a node drains, such as 1h30m. Then its pods are deleted, "
        "regardless of PodDisruptionBudgets and karpenter.sh/do-not-disrupt. If unset, the drain "
        "has no time limit.",
        pattern=DURATION,
    )


def quantities(about: str, *, rules: Sequence[Schema] = ()) -> Schema:
    """Return the schema of quantities by resource name."""
    return mapping(about, quantity(), rules=rules)


def conditions(*, loose: bool = False) -> Schema:
    """Return the schema of status conditions; loose ones may omit reason and message."""
    word = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
    reason = (
        string("Reason of the status, in CamelCase.", maximum=1024, pattern=rf"^({word}|)$")
        if loose
        else string(
            "Reason of the status, in CamelCase.", minimum=1, maximum=1024, pattern=rf"^{word}$"
        )
    )
    return array(
        "Conditions of the object.",
        fields(
            "A condition.",
            required=[
                "lastTransitionTime",
                *([] if loose else ["message", "reason"]),
                "status",
                "type",
            ],
            lastTransitionTime=string("Time at which the status last changed.", form="date-time"),
            message=string("Details of the status.", maximum=32768),
            observedGeneration=integer(
                "Generation of the object for which the condition was set.", form=INT64, minimum=0
            ),
            reason=reason,
            status=string("Status of the condition.", enum=["True", "False", "Unknown"]),
            type=string(
                "Type of the condition.", maximum=316, pattern=rf"^({SUBDOMAIN}/)?({NAME})$"
            ),
        ),
        kind="map",
        keys=["type"],
    )
