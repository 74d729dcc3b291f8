"""The parts of a schema that several kinds share: keys, requirements, taints, conditions."""

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
from controller.apis.nodepool import NodeClaimTemplateSpec

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
    """Rules about a label key; `subject` is the CEL variable that holds it.

    A domain of Karpenter's is reserved, but for the labels listed with it. `pool_owned`
    also keeps the key by which a node belongs to its pool.
    """
    rules = [
        rule(
            f"{subject} in {list(allowed)!r} || "
            f"!{subject}.matches('^([^/]*[.])?{domain.replace('.', '[.]')}(/|$)')",
            f"labels of the domain {domain} are set by the controller; "
            "only those it documents may be used",
        )
        for domain, allowed in domains.items()
    ]
    if pool_owned:
        rules.append(
            rule(
                f"{subject} != '{labels.NODEPOOL}'",
                f"{labels.NODEPOOL} is set by the controller on every node of the pool",
            )
        )
    rules.append(
        rule(
            f"{subject} != '{labels.HOSTNAME}'",
            f"{labels.HOSTNAME} is known only once a node exists, so nothing may require it",
        )
    )
    return rules


def requirements(
    about: str,
    *,
    key_rules: Sequence[Schema],
    min_values: bool = True,
    not_in_needs_values: bool = False,
) -> Schema:
    """Terms over labels, all of which must hold."""
    item = fields(
        "One term: key, operator, values.",
        required=["key", "operator"],
        key=string("The label.", maximum=316, pattern=QUALIFIED_NAME, rules=key_rules),
        operator=string(
            "How the label's value relates to the values. Gt, Lt, Gte and Lte compare numbers.",
            enum=["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"],
        ),
        values=array(
            "The values; none for Exists and DoesNotExist, one number for comparisons.",
            {"type": "string"},
            kind="atomic",
        ),
    )
    needs_values = ["In", "NotIn"] if not_in_needs_values else ["In"]
    rules = [
        *(
            rule(
                f"self.all(x, x.operator != '{operator}' || ({_HAS_VALUES}))",
                f"a requirement with operator {operator} needs at least one value",
            )
            for operator in needs_values
        ),
        rule(
            f"self.all(x, !({_NUMERIC}) || ({_ONE_NUMBER}))",
            "a requirement with operator Gt, Lt, Gte or Lte needs exactly one value, "
            "a whole number of at least 0",
        ),
    ]
    if min_values:
        item["properties"]["minValues"] = integer(
            "How many different values must remain possible, so that a launch stays flexible.",
            minimum=1,
            maximum=50,
        )
        rules.append(
            rule(
                "self.all(x, x.operator != 'In' || !has(x.minValues) || "
                "(has(x.values) && size(x.values) >= x.minValues))",
                "a requirement with operator In needs at least minValues values",
            )
        )
    return array(about, item, maximum=100, kind="atomic", rules=rules)


def taints(about: str) -> Schema:
    """A list of taints."""
    return array(
        about,
        fields(
            "Keeps pods away that do not tolerate it.",
            required=["key", "effect"],
            key=string("The taint's key.", minimum=1, pattern=QUALIFIED_NAME),
            value=string("The taint's value.", pattern=QUALIFIED_NAME),
            effect=string(
                "What happens to pods that do not tolerate the taint.",
                enum=["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ),
            timeAdded=string("When the taint was added.", form="date-time"),
        ),
        kind="atomic",
    )


def node_class_reference(*, rules: Sequence[Schema] = ()) -> Schema:
    """The reference to the class that says how instances are made."""

    def part(name: str, about: str, pattern: str | None = None) -> Schema:
        return string(
            about, pattern=pattern, rules=[rule("self != ''", f"{name} may not be empty")]
        )

    return fields(
        "The class that says how instances are made.",
        required=["group", "kind", "name"],
        group=part("group", "API group of the class, such as karpenter.k8s.aws.", r"^[^/]*$"),
        kind=part("kind", "Kind of the class, such as EC2NodeClass."),
        name=part("name", "Name of the class."),
        rules=rules,
    )


def expire_after() -> Schema:
    """How long a node may live."""
    return string(
        "How long a node may live before it is replaced, such as 720h; Never keeps it.",
        pattern=DURATION_OR_NEVER,
        default=default_of(NodeClaimTemplateSpec, "expireAfter"),
    )


def termination_grace_period() -> Schema:
    """How long a drain may take."""
    return string(
        "How long a node may drain before its pods are deleted whatever protects them, "
        "such as 1h30m. Left out, a drain waits for ever.",
        pattern=DURATION,
    )


def quantities(about: str, *, rules: Sequence[Schema] = ()) -> Schema:
    """Amounts by resource name."""
    return mapping(about, quantity(), rules=rules)


def conditions(*, loose: bool = False) -> Schema:
    """Status conditions; loose ones may leave out reason and message."""
    word = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
    reason = (
        string("Why, in one word.", maximum=1024, pattern=rf"^({word}|)$")
        if loose
        else string("Why, in one word.", minimum=1, maximum=1024, pattern=rf"^{word}$")
    )
    return array(
        "What stands about the object.",
        fields(
            "One standing fact.",
            required=[
                "lastTransitionTime",
                *([] if loose else ["message", "reason"]),
                "status",
                "type",
            ],
            lastTransitionTime=string("When the status last changed.", form="date-time"),
            message=string("Why, in a sentence.", maximum=32768),
            observedGeneration=integer(
                "The generation of the object this was said of.", form=INT64, minimum=0
            ),
            reason=reason,
            status=string("Whether it holds.", enum=["True", "False", "Unknown"]),
            type=string("Which fact.", maximum=316, pattern=rf"^({SUBDOMAIN}/)?({NAME})$"),
        ),
        kind="map",
        keys=["type"],
    )
