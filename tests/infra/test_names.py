"""Resource names are the documented ones if they fit, and always valid in AWS."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import names
from infra.interruption import EVENTS
from tests.infra.test_program import Made, run, standard

ROLE = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
POLICY = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")
RULE = re.compile(r"[.\-_A-Za-z0-9]{1,64}")
PART = r"[a-z0-9]+([._-][a-z0-9]+)*"
REPOSITORY = re.compile(rf"(?=.{{2,256}}\Z)({PART}/)*{PART}")
POLICY_CHARACTERS = 6144
"""What a managed policy may hold, white space aside."""

TITLES = ("NodeLifecycle", "IAMIntegration", "ResourceDiscovery")
clusters = st.from_regex(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", fullmatch=True)
queues = st.from_regex(r"[A-Za-z0-9_-]{1,80}", fullmatch=True)
regions = st.sampled_from(["us-west-2", "us-east-1", "us-gov-west-1", "cn-north-1"])
places = st.tuples(clusters, regions)


def refused(made: Made) -> list[str]:
    """Return the names that AWS would refuse."""
    limits = {
        "aws:iam/role:Role": ROLE,
        "aws:iam/instanceProfile:InstanceProfile": POLICY,
        "aws:iam/policy:Policy": POLICY,
        "aws:sqs/queue:Queue": QUEUE,
        "aws:cloudwatch/eventRule:EventRule": RULE,
        "aws:ecr/repository:Repository": REPOSITORY,
    }
    return [
        f"{kind} {inputs['name']}"
        for kind, form in limits.items()
        for inputs in made.of(kind).values()
        if not form.fullmatch(inputs["name"])
    ] + [
        f"{name}: {size} characters"
        for name, inputs in made.of("aws:iam/policy:Policy").items()
        if (size := len("".join(inputs["policy"].split()))) > POLICY_CHARACTERS
    ]


@pytest.mark.process
@pytest.mark.usefixtures("entries")
def test_the_longest_cluster_name_gives_only_valid_aws_names() -> None:
    made = run(clusterName="Prod" + "x" * 96, image="")

    assert refused(made) == []
    assert made.of("aws:ecr/repository:Repository")
    rules = [rule["name"] for rule in made.of("aws:cloudwatch/eventRule:EventRule").values()]
    assert len(set(rules)) == len(EVENTS)


def test_a_short_name_equals_that_of_karpenters_guide() -> None:
    assert names.queue("shop") == "shop"
    assert names.node_role("Shop_1") == "KarpenterNodeRole-Shop_1"
    assert names.controller_role("shop") == "KarpenterControllerRole-shop"
    assert names.rule("shop", "health") == "shop-health"
    assert names.repository("shop-1") == "joiner/shop-1"
    long = "x" * 47
    assert names.node_role(long).startswith(f"KarpenterNodeRole-{'x' * 35}-")


@pytest.mark.usefixtures("entries")
def test_clusters_of_one_name_in_two_regions_share_nothing_if_their_roles_are_named() -> None:
    here = standard()
    there = run(region="eu-west-1", nodeRoleName="JoinerNodes-eu", controllerRoleName="Joiner-eu")

    for kind in ("aws:iam/role:Role", "aws:iam/policy:Policy", "aws:iam/instanceProfile:"):
        ours, theirs = (
            {
                inputs["name"].lower()
                for token, _, inputs in made.resources
                if token.startswith(kind)
            }
            for made in (here, there)
        )
        assert ours
        assert not ours & theirs


def test_policy_names_have_cluster_and_region() -> None:
    name = names.controller_policy("Interruption", "shop", "us-west-2")

    assert name == "KarpenterControllerInterruptionPolicy-shop-us-west-2"


@given(cluster=clusters, region=regions)
def test_every_cluster_name_gives_valid_aws_names(cluster: str, region: str) -> None:
    assert QUEUE.fullmatch(names.queue(cluster))
    assert ROLE.fullmatch(names.node_role(cluster))
    assert ROLE.fullmatch(names.controller_role(cluster))
    assert REPOSITORY.fullmatch(names.repository(cluster))
    for title in TITLES:
        assert POLICY.fullmatch(names.controller_policy(title, cluster, region))


@given(
    one=places,
    change=st.sampled_from([str.lower, str.upper, str.swapcase, lambda c: c[:99] + "x"]),
    region=regions,
)
def test_two_clusters_of_an_account_have_different_policy_names(
    one: tuple[str, str], change: object, region: str
) -> None:
    assert callable(change)
    other = (str(change(one[0])), region)

    # Names in IAM are case-insensitive.
    shared = [
        title
        for title in TITLES
        if names.controller_policy(title, *one).lower()
        == names.controller_policy(title, *other).lower()
    ]

    assert bool(shared) == (one == other)


@given(cluster=clusters)
def test_clusters_whose_names_differ_only_in_case_have_different_repositories(cluster: str) -> None:
    other = cluster.swapcase()

    assert (names.repository(cluster) == names.repository(other)) == (cluster == other)


@given(one=queues, other=queues)
def test_two_queues_have_different_rule_names(one: str, other: str) -> None:
    of_one, of_other = ({names.rule(queue, event) for event in EVENTS} for queue in (one, other))

    assert len(of_one) == len(EVENTS)
    assert all(RULE.fullmatch(rule) for rule in of_one | of_other)
    assert not (of_one & of_other) or one == other
