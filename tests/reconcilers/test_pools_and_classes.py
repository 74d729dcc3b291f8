"""NodePools and node classes report whether and why they are not ready; NodeClaims expire."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.ec2nodeclass import (
    BlockDeviceMapping,
    SelectorTerm,
    SubnetStatus,
)
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import (
    IMAGE_SNAPSHOT_USED,
    IN_SERVICE,
    SOLE_OWNER,
    NodePool,
)
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.fake import make_instance_type
from controller.disruption.modes import Mode
from controller.reconcilers.nodeclaim.expiration import Expiration
from controller.reconcilers.nodeclass.resolver import Resolver
from controller.reconcilers.nodepool.readiness import OUT_OF_SERVICE, Readiness
from tests.builders import changed, make_nodeclaim, make_nodeclass, make_nodepool, true
from tests.reconcilers.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def readiness(world: World) -> Readiness:
    return Readiness(world.ports, world.registrations)


@pytest.fixture
def resolver(world: World) -> Resolver:
    return Resolver(world.ports)


def fresh_pool(*requirements: Requirement) -> NodePool:
    return make_nodepool(requirements=requirements, status={"conditions": []})


def with_class(reference: dict[str, str]) -> dict[str, Any]:
    return {"template": {"spec": {"node_class_ref": reference}}}


def stored_pool(world: World) -> NodePool:
    pool = world.api.find(kinds.NODE_POOL, "default")
    assert pool is not None
    return pool


async def test_a_pool_with_a_ready_class_becomes_ready_and_carries_its_hash(
    world: World, readiness: Readiness
) -> None:
    world.seed(make_nodeclass(), fresh_pool())

    await readiness.reconcile("default")

    pool = stored_pool(world)
    assert conditions.is_true(pool.status.conditions, "Ready")
    assert await world.events("NodePoolNotReady") == []
    assert pool.metadata.annotations[labels.NODEPOOL_HASH]
    assert pool.metadata.annotations[labels.NODEPOOL_HASH_VERSION] == "v3"


async def test_a_pool_without_its_class_names_the_one_to_create(
    world: World, readiness: Readiness
) -> None:
    world.seed(fresh_pool())

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "NodeClassReady")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NodeClassNotFound")
    assert '"default"' in condition.message
    assert not conditions.is_true(stored_pool(world).status.conditions, "Ready")
    assert await world.events("NodePoolNotReady") == [condition.message]


@pytest.mark.parametrize(
    ("group", "kind", "problem"),
    [
        ("karpenter.k8s.aws", "Foo", 'kind "Foo" is not supported, only EC2NodeClass is'),
        (
            "karpenter.k8s.asw",
            "EC2NodeClass",
            'group "karpenter.k8s.asw" is not supported, only karpenter.k8s.aws is',
        ),
    ],
)
async def test_a_pool_with_an_unsupported_class_is_not_ready(
    world: World, readiness: Readiness, group: str, kind: str, problem: str
) -> None:
    reference = {"group": group, "kind": kind, "name": "default"}
    world.seed(make_nodeclass(), changed(fresh_pool(), spec=with_class(reference)))

    await readiness.reconcile("default")

    known = stored_pool(world).status.conditions
    condition = conditions.find(known, "NodeClassReady")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NodeClassNotFound")
    assert condition.message == (
        f"nodeClassRef.{problem}. The field cannot change: delete the NodePool and create it again"
    )
    ready = conditions.find(known, "Ready")
    assert ready is not None
    assert (ready.status, ready.message) == ("False", "NodeClassReady=False")


@pytest.mark.parametrize(
    ("group", "kind"), [("karpenter.k8s.awss", "EC2Nodeclass"), ("karpenter.aws", "NodeClass")]
)
async def test_a_pool_whose_class_has_a_misspelt_group_and_kind_names_both(
    world: World, readiness: Readiness, group: str, kind: str
) -> None:
    reference = {"group": group, "kind": kind, "name": "default"}
    world.seed(make_nodeclass(), changed(fresh_pool(), spec=with_class(reference)))

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "NodeClassReady")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NodeClassNotFound")
    assert condition.message == (
        f'nodeClassRef.group "{group}" is not supported, only karpenter.k8s.aws is; '
        f'nodeClassRef.kind "{kind}" is not supported, only EC2NodeClass is. The fields cannot '
        "change: delete the NodePool and create it again"
    )


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        ("eks.amazonaws.com", "NodeClass"),
        ("karpenter.kwok.sh", "KWOKNodeClass"),
        ("karpenter.azure.com", "AKSNodeClass"),
        ("karpenter.k8s.gcp", "GCENodeClass"),
        ("karpenter.k8s.alibabacloud", "ECSNodeClass"),
        ("karpenter.k8s.oracle", "OCINodeClass"),
        ("karpenter-ibm.sh", "IBMNodeClass"),
        ("karpenter.cluster.x-k8s.io", "ClusterAPINodeClass"),
    ],
)
async def test_a_pool_of_another_controller_gets_no_conditions(
    world: World, readiness: Readiness, group: str, kind: str
) -> None:
    reference = {"group": group, "kind": kind, "name": "default"}
    world.seed(make_nodeclass(), changed(fresh_pool(), spec=with_class(reference)))

    await readiness.reconcile("default")

    assert stored_pool(world).status.conditions == []


async def test_a_pool_whose_class_is_not_ready_repeats_the_message_of_the_class(
    world: World, readiness: Readiness, resolver: Resolver
) -> None:
    world.cloud.set_unready(
        "default",
        condition="InstanceProfileReady",
        reason="InstanceProfileNotReady",
        message="create the profile",
    )
    world.seed(make_nodeclass(), fresh_pool())
    await resolver.reconcile("default")
    world.see()

    await readiness.reconcile("default")

    pool = stored_pool(world)
    of_class = conditions.find(pool.status.conditions, "NodeClassReady")
    assert of_class is not None
    assert (of_class.status, of_class.reason) == ("False", "UnhealthyDependents")
    assert of_class.message == (
        'EC2NodeClass "default" is not ready: InstanceProfileReady=False: create the profile'
    )
    ready = conditions.find(pool.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "UnhealthyDependents")
    assert ready.message == "NodeClassReady=False"


async def test_a_pool_with_an_invalid_budget_is_ready_and_says_what_is_wrong(
    world: World, readiness: Readiness
) -> None:
    never = {"nodes": "1", "schedule": "0 0 31 2 *", "duration": "1h"}
    pool = make_nodepool(budgets=[{"nodes": "10%"}, never], status={"conditions": []})
    world.seed(make_nodeclass(), pool)

    await readiness.reconcile("default")
    await readiness.reconcile("default")

    assert conditions.is_true(stored_pool(world).status.conditions, "Ready")
    assert await world.events("InvalidDisruptionBudget") == [
        "spec.disruption.budgets[1]: schedule '0 0 31 2 *' never occurs: no month that it names "
        "has such a day; an invalid budget allows no disruption for its reasons"
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (labels.DISRUPTION_MODE, "recomend", "not act, recommend or observe; observe applies"),
        (
            labels.NODE_PRICE_PER_HOUR,
            "0,02",
            "not an amount in $/h of at least 0; NODE_PRICE_PER_HOUR applies",
        ),
        (
            labels.PREFERENCE_PRICE,
            "-1",
            "not an amount in $/h of at least 0; consolidation keeps the preferences of pods",
        ),
    ],
)
async def test_an_invalid_annotation_of_a_pool_is_reported_once_per_value(
    world: World, readiness: Readiness, key: str, value: str, said: str
) -> None:
    pool = changed(fresh_pool(), metadata={"annotations": {key: value}})
    world.seed(make_nodeclass(), pool)

    await readiness.reconcile("default")
    world.pass_time(seconds=600)
    await readiness.reconcile("default")

    assert conditions.is_true(stored_pool(world).status.conditions, "Ready")
    first = f"Invalid {key} annotation: {value!r} is {said}"
    assert await world.events("InvalidAnnotation") == [first]

    world.seed(changed(pool, metadata={"annotations": {key: "other"}}))
    await readiness.reconcile("default")

    second = f"Invalid {key} annotation: 'other' is {said}"
    assert await world.events("InvalidAnnotation") == [first, second]


async def test_an_invalid_annotation_of_a_template_is_reported(
    world: World, readiness: Readiness
) -> None:
    annotated = {"template": {"metadata": {"annotations": {labels.FAST_IMAGE_PULL: "yes"}}}}
    world.seed(make_nodeclass(), changed(fresh_pool(), spec=annotated))

    await readiness.reconcile("default")

    assert await world.events("InvalidAnnotation") == [
        f"Invalid {labels.FAST_IMAGE_PULL} annotation: 'yes' is not true or false; false applies"
    ]


@pytest.mark.parametrize("mode", Mode)
async def test_every_disruption_mode_is_a_valid_annotation(
    world: World, readiness: Readiness, mode: Mode
) -> None:
    valid = {
        labels.DISRUPTION_MODE: mode.value,
        labels.NODE_PRICE_PER_HOUR: "0.02",
        labels.PREFERENCE_PRICE: "0",
    }
    world.seed(make_nodeclass(), changed(fresh_pool(), metadata={"annotations": valid}))

    await readiness.reconcile("default")

    assert await world.events("InvalidAnnotation") == []


STACK = {"joiner.dev/stack": "organization/joiner/prod"}
FLUX = {
    "kustomize.toolkit.fluxcd.io/name": "pools",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
}
ARGO = {"argocd.argoproj.io/tracking-id": "pools:karpenter.sh/NodePool:default/default"}
HELM = {"meta.helm.sh/release-name": "pools", "meta.helm.sh/release-namespace": "default"}
FLUX_HELM = {
    "helm.toolkit.fluxcd.io/name": "pools",
    "helm.toolkit.fluxcd.io/namespace": "flux-system",
}


def pool_of(labels: dict[str, str], annotations: dict[str, str]) -> NodePool:
    pool = fresh_pool()
    return changed(pool, metadata={"labels": labels, "annotations": annotations})


@pytest.mark.parametrize(
    ("labels", "annotations", "said"),
    [
        ({}, STACK, None),
        (FLUX, {}, None),
        ({}, ARGO, None),
        (FLUX_HELM, HELM, None),
        (FLUX, STACK, "Flux's Kustomization flux-system/pools wins, because it reverts"),
        ({}, STACK | ARGO, "Argo CD's Application pools wins, because it reverts"),
        (FLUX, ARGO, "revert each other's changes, and the last write wins"),
        ({}, STACK | HELM, ": the last write wins"),
    ],
    ids=["stack", "flux", "argo", "helm by flux", "flux+stack", "argo+stack", "both", "helm+stack"],
)
async def test_a_pool_applied_by_two_managers_reports_the_conflict_and_stays_ready(
    world: World,
    readiness: Readiness,
    labels: dict[str, str],
    annotations: dict[str, str],
    said: str | None,
) -> None:
    world.seed(make_nodeclass(), pool_of(labels, annotations))

    await readiness.reconcile("default")

    found = stored_pool(world).status.conditions
    condition = conditions.find(found, SOLE_OWNER)
    assert conditions.is_true(found, "Ready")
    if said is None:
        assert condition is None
    else:
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "SeveralOwners")
        assert said in condition.message


@pytest.mark.parametrize(
    ("is_on", "capacity_types", "reason"),
    [
        (False, ("reserved",), "FeatureGateDisabled"),
        (False, ("reserved", "on-demand"), "ValidationSucceeded"),
        (True, ("reserved",), "ValidationSucceeded"),
    ],
)
async def test_a_pool_of_reserved_capacity_reports_a_disabled_feature_gate(
    world: World, is_on: bool, capacity_types: tuple[str, ...], reason: str
) -> None:
    requirement = Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[*capacity_types])
    world.seed(make_nodeclass(), fresh_pool(requirement))

    readiness = Readiness(world.ports, world.registrations, reserved_capacity=is_on)
    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    assert condition.reason == reason
    if reason == "FeatureGateDisabled":
        assert "ReservedCapacity=true" in condition.message


SNAPSHOT = "snap-0123456789abcdef0"


@pytest.mark.parametrize(
    ("annotation", "family", "reason", "said"),
    [
        (None, "Windows2022", None, ""),
        (f"{SNAPSHOT},volumeSize=100Gi", "AL2023", None, ""),
        (SNAPSHOT, "Bottlerocket", None, ""),
        (SNAPSHOT, "Windows2022", "ImageSnapshotUnsupported", "only AL2023 and Bottlerocket do"),
        ("latest", "AL2023", "ImageSnapshotInvalid", "'latest' is not the ID"),
        (f"{SNAPSHOT},volumeSize=9", "AL2023", "ImageSnapshotInvalid", "volumeSize"),
    ],
)
async def test_a_pool_reports_a_snapshot_that_new_nodes_ignore_and_stays_ready(
    world: World,
    readiness: Readiness,
    annotation: str | None,
    family: str,
    reason: str | None,
    said: str,
) -> None:
    annotations = {} if annotation is None else {labels.IMAGE_SNAPSHOT: annotation}
    template = {"metadata": {"annotations": annotations}}
    world.seed(
        make_nodeclass(ami_family=family), changed(fresh_pool(), spec={"template": template})
    )

    await readiness.reconcile("default")

    found = stored_pool(world).status.conditions
    condition = conditions.find(found, IMAGE_SNAPSHOT_USED)
    assert conditions.is_true(found, "Ready")
    if reason is None:
        assert condition is None
    else:
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", reason)
        assert said in condition.message


@pytest.mark.parametrize(
    ("family", "letters", "is_used"),
    [
        ("AL2023", "fghijklmnop", False),
        ("AL2023", "fghijklmno", True),
        ("Bottlerocket", "fghijklmnop", True),
    ],
)
async def test_a_pool_reports_that_no_device_name_is_free_for_the_snapshot(
    world: World, readiness: Readiness, family: str, letters: str, is_used: bool
) -> None:
    devices = [BlockDeviceMapping(device_name=f"/dev/sd{letter}") for letter in letters]
    template = {"metadata": {"annotations": {labels.IMAGE_SNAPSHOT: SNAPSHOT}}}
    world.seed(
        make_nodeclass(ami_family=family, block_device_mappings=devices),
        changed(fresh_pool(), spec={"template": template}),
    )

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, IMAGE_SNAPSHOT_USED)
    assert (condition is None) == is_used
    if condition is not None:
        assert condition.reason == "NoFreeDevice"
        assert 'EC2NodeClass "default"' in condition.message


async def test_a_corrected_snapshot_is_no_longer_reported(
    world: World, readiness: Readiness
) -> None:
    template = {"metadata": {"annotations": {labels.IMAGE_SNAPSHOT: "latest"}}}
    node_class = make_nodeclass(ami_family="AL2023")
    world.seed(node_class, changed(fresh_pool(), spec={"template": template}))
    await readiness.reconcile("default")
    before = stored_pool(world).status.conditions
    assert conditions.find(before, IMAGE_SNAPSHOT_USED) is not None
    template = {"metadata": {"annotations": {labels.IMAGE_SNAPSHOT: SNAPSHOT}}}
    world.seed(changed(stored_pool(world), spec={"template": template}))

    await readiness.reconcile("default")

    found = stored_pool(world).status.conditions
    assert conditions.find(found, IMAGE_SNAPSHOT_USED) is None


async def test_a_pool_out_of_service_launches_nothing_until_the_annotation_is_removed(
    world: World, readiness: Readiness
) -> None:
    ready_condition = Condition(
        type=IN_SERVICE,
        status="False",
        reason="Draining",
        message="its stack is being destroyed",
        last_transition_time=world.clock(),
    )
    pool = fresh_pool()
    world.seed(make_nodeclass(), changed(pool, status={"conditions": [ready_condition]}))

    left = await readiness.reconcile("default")

    ready = conditions.find(stored_pool(world).status.conditions, "Ready")
    assert ready is not None
    assert ready.is_false
    assert ready.message == f"{IN_SERVICE}=False"
    assert left == OUT_OF_SERVICE

    world.pass_time(seconds=OUT_OF_SERVICE.total_seconds())
    world.see()

    assert await readiness.reconcile("default") is None
    found = stored_pool(world).status.conditions
    assert conditions.is_true(found, "Ready")
    assert conditions.find(found, IN_SERVICE) is None


async def test_an_invalid_pool_names_the_requirement(world: World, readiness: Readiness) -> None:
    nonsense = Requirement(key=labels.CAPACITY_TYPE, operator="In", values=["spott"])
    world.seed(make_nodeclass(), fresh_pool(nonsense))

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    assert condition.reason == "NodePoolValidationFailed"
    assert labels.CAPACITY_TYPE in condition.message


async def test_a_pool_that_contradicts_itself_is_not_ready(
    world: World, readiness: Readiness
) -> None:
    red = Requirement(key="team", operator="In", values=["red"])
    blue = Requirement(key="team", operator="NotIn", values=["red", "green"])
    world.seed(make_nodeclass(), fresh_pool(red, blue))

    await readiness.reconcile("default")

    found = stored_pool(world).status.conditions
    condition = conditions.find(found, "ValidationSucceeded")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NodePoolValidationFailed")
    assert "team NotIn [red, green] contradicts requirement team In [red]" in condition.message
    assert not conditions.is_true(found, "Ready")


async def test_a_pool_whose_zones_have_no_subnet_is_not_ready(
    world: World, readiness: Readiness
) -> None:
    slip = Requirement(key=labels.ZONE, operator="In", values=["us-west-2d"])
    subnets = [SubnetStatus(id=zone, zone=zone) for zone in ("us-west-2b", "us-west-2a")]
    node_class = with_fields(make_nodeclass(), "status", subnets=subnets)
    world.seed(node_class, fresh_pool(slip))

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NoCompatibleInstanceTypes")
    assert condition.message == (
        f"no subnet of EC2NodeClass default meets {labels.ZONE} In [us-west-2d] in "
        "spec.template.spec.requirements: its subnets are in us-west-2a, us-west-2b"
    )


async def test_a_pool_whose_requirement_matches_no_instance_type_is_not_ready(
    world: World, readiness: Readiness
) -> None:
    slip = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=["m5.lrage"])
    world.seed(make_nodeclass(), fresh_pool(slip))

    pause = await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "NoCompatibleInstanceTypes")
    assert f"no instance type meets {labels.INSTANCE_TYPE} In [m5.lrage]" in condition.message
    assert not conditions.is_true(stored_pool(world).status.conditions, "Ready")
    assert pause is not None  # no event reports that EC2 now offers the type

    offered = make_instance_type("m5.lrage")
    world.cloud.types = (*world.cloud.types, offered)
    world.see()
    assert await readiness.reconcile("default") is None
    assert conditions.is_true(stored_pool(world).status.conditions, "Ready")


async def test_an_empty_value_of_a_requirement_is_shown_in_quotes(
    world: World, readiness: Readiness
) -> None:
    empty = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=[""])
    world.seed(make_nodeclass(), fresh_pool(empty))

    await readiness.reconcile("default")

    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    assert f'{labels.INSTANCE_TYPE} In [""]' in condition.message


async def test_types_without_current_capacity_leave_a_pool_ready(
    world: World, readiness: Readiness
) -> None:
    elsewhere = Requirement(key=labels.ZONE, operator="In", values=["us-west-2z"])
    world.seed(make_nodeclass(), fresh_pool(elsewhere))

    await readiness.reconcile("default")

    assert conditions.is_true(stored_pool(world).status.conditions, "Ready")


async def test_without_an_answer_of_the_cloud_a_pool_is_unchanged(
    world: World, readiness: Readiness
) -> None:
    slip = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=["m5.lrage"])
    world.seed(make_nodeclass(), fresh_pool(slip))
    await readiness.reconcile("default")
    world.see()
    before = stored_pool(world).status

    world.cloud.set_unready("default", reason="SubnetsNotFound", message="tag a subnet")
    await readiness.reconcile("default")

    assert stored_pool(world).status == before


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_static_pool_reports_that_its_feature_gate_is_off(
    world: World, is_on: bool
) -> None:
    pool = fresh_pool()
    world.seed(
        make_nodeclass(),
        changed(pool, spec={"replicas": 2}),
    )
    readiness = Readiness(world.ports, world.registrations, is_on)

    await readiness.reconcile("default")

    assert conditions.is_true(stored_pool(world).status.conditions, "Ready") is is_on
    condition = conditions.find(stored_pool(world).status.conditions, "ValidationSucceeded")
    assert condition is not None
    if not is_on:
        assert condition.reason == "FeatureGateDisabled"
        assert "add StaticCapacity=true to the setting FEATURE_GATES" in condition.message


async def test_an_unchanged_pool_status_is_not_written(world: World, readiness: Readiness) -> None:
    world.seed(make_nodeclass(), fresh_pool())
    await readiness.reconcile("default")
    world.see()
    written = len(world.api.calls)

    await readiness.reconcile("default")

    assert len(world.api.calls) == written


async def test_a_pool_counts_its_nodes(world: World, readiness: Readiness) -> None:
    claim = make_nodeclaim(
        provider_id="fake:///1", status={"capacity": {"cpu": "4", "memory": "8Gi"}}
    )
    world.seed(make_nodeclass(), fresh_pool(), claim)

    await readiness.reconcile("default")

    pool = stored_pool(world)
    assert pool.status.nodes == 1
    assert pool.status.resources["cpu"] == "4"
    assert pool.status.resources["memory"] == "8Gi"


NO_SUBNETS = "SubnetSelector did not match any Subnets"


async def test_a_class_without_matching_subnets_reports_it(
    world: World, resolver: Resolver
) -> None:
    world.cloud.set_unready("default", reason="SubnetsNotFound", message=NO_SUBNETS)
    world.seed(make_nodeclass())

    await resolver.reconcile("default")

    node_class = world.api.find(kinds.EC2_NODE_CLASS, "default")
    assert node_class is not None
    condition = conditions.find(node_class.status.conditions, "SubnetsReady")
    assert condition is not None
    assert (condition.reason, condition.message) == ("SubnetsNotFound", NO_SUBNETS)
    ready = conditions.find(node_class.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.message) == ("False", "SubnetsReady=False")


async def test_the_terms_without_matches_and_a_remedy_are_in_an_event_and_in_the_pool(
    world: World, readiness: Readiness, resolver: Resolver
) -> None:
    world.cloud.set_unready("default", reason="SubnetsNotFound", message=NO_SUBNETS)
    lost = [SelectorTerm(tags={"tier": "moon"})]
    world.seed(make_nodeclass(subnet_selector_terms=lost), fresh_pool())

    for _ in range(2):
        await resolver.reconcile("default")
        world.see()
    await readiness.reconcile("default")

    says = (
        f"{NO_SUBNETS}; spec.subnetSelectorTerms: tag tier=moon. Add the tags to a subnet, or "
        "change the terms"
    )
    assert await world.events("SubnetsNotFound") == [says]
    of_class = conditions.find(stored_pool(world).status.conditions, "NodeClassReady")
    assert of_class is not None
    assert of_class.message == f'EC2NodeClass "default" is not ready: SubnetsReady=False: {says}'


async def test_a_deleted_class_stays_while_a_claim_uses_it(
    world: World, resolver: Resolver
) -> None:
    world.seed(make_nodeclass(), make_nodeclaim())
    await resolver.reconcile("default")
    await world.api.delete(kinds.EC2_NODE_CLASS, "default")
    world.see()

    await resolver.reconcile("default")
    assert world.api.find(kinds.EC2_NODE_CLASS, "default") is not None
    assert await world.events("WaitingOnNodeClaimTermination")

    await world.api.delete(kinds.NODE_CLAIM, "claim")
    world.see()
    await resolver.reconcile("default")
    assert world.api.find(kinds.EC2_NODE_CLASS, "default") is None
    assert world.cloud.released == ["default"]


@pytest.mark.parametrize(
    ("expire_after", "hours", "ends"),
    [("720h", 719, False), ("720h", 720, True), ("Never", 10**5, False)],
)
async def test_a_claim_is_deleted_when_it_expires(
    world: World, expire_after: str, hours: int, ends: bool
) -> None:
    claim = make_nodeclaim(
        finalizers=[labels.TERMINATION_FINALIZER], spec={"expireAfter": expire_after}
    )
    world.seed(claim)
    world.pass_time(hours=hours)
    expiration = Expiration(world.ports)

    await expiration.reconcile("claim")

    left = world.claim("claim")
    assert left is not None
    assert left.metadata.is_deleting is ends


def made_by_karpenter(name: str, written: dict[str, str], *, drifted: bool = False) -> NodeClaim:
    """A claim of the default pool and class, with the annotations of another version."""
    return make_nodeclaim(name, annotations=written, conditions=true("Drifted") if drifted else [])


@pytest.mark.parametrize(
    ("hashed", "version"),
    [
        pytest.param(labels.NODECLASS_HASH, labels.NODECLASS_HASH_VERSION, id="class"),
        pytest.param(labels.NODEPOOL_HASH, labels.NODEPOOL_HASH_VERSION, id="pool"),
    ],
)
async def test_a_new_hash_version_neither_causes_nor_clears_drift(
    world: World, readiness: Readiness, resolver: Resolver, hashed: str, version: str
) -> None:
    old = {hashed: "1", version: "v2"}
    kept = made_by_karpenter("kept", old)
    drifted = made_by_karpenter("drifted", old, drifted=True)
    world.seed(make_nodeclass(), fresh_pool(), kept, drifted)

    await resolver.reconcile("default")
    await readiness.reconcile("default")

    node_class = world.api.find(kinds.EC2_NODE_CLASS, "default")
    assert node_class is not None
    now = {**node_class.metadata.annotations, **stored_pool(world).metadata.annotations}
    claims = {claim.metadata.name: claim.metadata.annotations for claim in world.claims()}
    assert (claims["kept"][hashed], claims["kept"][version]) == (now[hashed], now[version])
    assert (claims["drifted"][hashed], claims["drifted"][version]) == ("1", now[version])
