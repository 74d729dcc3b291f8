"""The life of a NodeClaim from creation to an initialized node, with possible failures."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.errors import ApiError, ConflictError, ForbiddenError
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    ThrottledError,
)
from controller.cloudprovider.provider import Instance
from controller.reconcilers.nodeclaim.lifecycle import OTHERS_GRACE, Lifecycle
from tests.builders import (
    changed,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.reconcilers.world import World, launched


async def test_a_claim_is_launched_and_its_status_describes_the_instance(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)

    assert conditions.is_true(claim.status.conditions, LAUNCHED)
    assert claim.status.provider_id in world.cloud.instances_by_id
    assert claim.status.capacity["cpu"]
    assert claim.metadata.labels[labels.INSTANCE_TYPE]
    assert labels.TERMINATION_FINALIZER in claim.metadata.finalizers


async def test_a_claim_of_a_missing_pool_is_not_managed_at_first(
    world: World, lifecycle: Lifecycle
) -> None:
    """A second Karpenter of the same kind creates a NodeClaim and launches it itself."""
    claim = make_nodeclaim()
    claim.metadata.labels[labels.NODEPOOL] = "second"
    world.seed(claim)

    left = await lifecycle.reconcile("claim")

    assert world.cloud.instances_by_id == {}
    assert left == OTHERS_GRACE
    world.pass_time(seconds=10)
    await lifecycle.reconcile("claim")
    assert len(world.cloud.instances_by_id) == 1


async def test_a_launch_that_was_not_recorded_is_not_repeated(
    world: World, lifecycle: Lifecycle
) -> None:
    world.seed(make_nodeclaim())
    claim = world.claim("claim")
    assert claim is not None
    await world.cloud.launch(claim, make_nodeclass())  # and then the controller died

    await lifecycle.reconcile("claim")

    assert len(world.cloud.instances_by_id) == 1


async def test_a_claim_without_capacity_is_deleted_with_an_event(
    world: World, lifecycle: Lifecycle
) -> None:
    world.cloud.exhaust()

    world.seed(make_nodeclaim())
    await lifecycle.reconcile("claim")
    world.see()
    await lifecycle.reconcile("claim")

    assert world.claim("claim") is None
    assert await world.events("InsufficientCapacityError")


async def test_insufficient_capacity_is_reported_on_the_pods(
    world: World, lifecycle: Lifecycle
) -> None:
    world.cloud.exhaust()
    pod = make_pod("web")
    world.seed(make_nodeclaim(), pod)
    world.cluster.nominate("claim", [pod], world.now + timedelta(minutes=1))

    await lifecycle.reconcile("claim")

    messages = await world.events("InsufficientCapacityError")
    assert (
        sum("NodeClaim claim nominated for this pod failed to launch" in each for each in messages)
        == 1
    )


async def test_equal_capacity_errors_of_claims_are_one_warning(
    world: World, lifecycle: Lifecycle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    names = [f"claim-{number}" for number in range(9)]
    for name in names:
        claim = make_nodeclaim()
        world.seed(changed(claim, metadata={"name": name}))

    for name in names:
        world.cloud.fail("launch", InsufficientCapacityError("no m5.large in us-west-2a"))
        await lifecycle.reconcile(name)
        world.see()
        await lifecycle.reconcile(name)

    assert world.claims() == []
    logged = [r for r in caplog.records if r.getMessage().startswith("failed launching")]
    assert {r.getMessage() for r in logged} == {
        "failed launching nodeclaim; deleting it: no m5.large in us-west-2a"
    }
    assert [vars(r)["NodeClaim"] for r in logged] == names
    assert [vars(r)["NodeClaim"] for r in caplog.records if r.levelname == "WARNING"] == ["claim-0"]


async def test_a_failed_launch_is_one_warning_with_its_reason_and_pods(
    world: World, lifecycle: Lifecycle, caplog: pytest.LogCaptureFixture
) -> None:
    world.cloud.exhaust()
    pod = make_pod("web")
    world.seed(make_nodeclaim(), pod)
    world.cluster.nominate("claim", [pod], world.now + timedelta(minutes=1))

    await lifecycle.reconcile("claim")

    (warning,) = [vars(r) for r in caplog.records if r.levelname == "WARNING"]
    assert (warning["NodeClaim"], warning["Pods"]) == ("claim", "default/web")
    assert warning["reason"] == "InsufficientCapacity"


async def test_every_step_of_a_node_names_its_pods_in_the_log(
    world: World, lifecycle: Lifecycle, caplog: pytest.LogCaptureFixture
) -> None:
    pod = make_pod("web")
    world.seed(make_nodeclaim(), pod)
    world.cluster.nominate("claim", [pod], world.now + timedelta(minutes=1))

    with caplog.at_level("INFO"):
        await lifecycle.reconcile("claim")

    named = [r.getMessage() for r in caplog.records if vars(r).get("Pods") == "default/web"]
    assert named == ["launched nodeclaim"]


async def test_a_failed_launch_is_reported_in_its_condition(
    world: World, lifecycle: Lifecycle
) -> None:
    world.cloud.fail("launch", CreateError("role is not allowed", reason="Unauthorized"))
    world.seed(make_nodeclaim())

    with pytest.raises(CreateError):
        await lifecycle.reconcile("claim")

    claim = world.claim("claim")
    assert claim is not None
    condition = conditions.find(claim.status.conditions, LAUNCHED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "Unauthorized")


@pytest.mark.parametrize(
    "error",
    [CreateError("role is not allowed", reason="Unauthorized"), ThrottledError("slow down")],
)
async def test_a_failed_launch_is_reported_on_the_pool_and_on_its_pods(
    world: World, lifecycle: Lifecycle, error: CloudProviderError
) -> None:
    world.cloud.fail("launch", error)
    world.seed(make_nodepool(), make_nodeclaim())
    pods = [make_pod("one"), make_pod("two")]
    world.cluster.nominate("claim", pods, world.clock() + timedelta(seconds=20))

    with pytest.raises(type(error)):
        await lifecycle.reconcile("claim")

    messages = await world.events("LaunchFailed")
    assert len(messages) == 2
    assert all(str(error) in message and error.reason in message for message in messages)
    waiting = await world.events("FailedScheduling")
    assert len(waiting) == len(pods)
    assert all(f"nodeclaim/claim, retrying: {error}" in message for message in waiting)


@pytest.mark.virtual_clock
async def test_a_launch_that_waits_for_aws_says_so_and_goes_on(
    world: World,
    lifecycle: Lifecycle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    launch = world.cloud.launch
    seen: list[str] = []

    async def slow(*arguments: Any) -> Instance:
        await asyncio.sleep(20)
        claim = world.claim("claim")
        assert claim is not None
        condition = conditions.find(claim.status.conditions, LAUNCHED)
        seen.append(condition.reason if condition is not None else "")
        return await launch(*arguments)

    monkeypatch.setattr(world.cloud, "launch", slow)
    claim = await launched(world, lifecycle)

    assert seen == ["WaitingForAWS"]
    assert conditions.is_true(claim.status.conditions, LAUNCHED)
    (message,) = await world.events("WaitingForAWS")
    assert message == "AWS has not responded to the launch for 10 s; still waiting"
    assert "AWS is slow" in caplog.text


async def test_the_whole_message_of_aws_is_reported_with_its_reason_once(
    world: World, lifecycle: Lifecycle
) -> None:
    words = f"create_fleet: {'not authorized ' * 30}because no policy allows ec2:CreateTags"
    error = CreateError(f"{words} (RequestLimitExceeded)", reason="RequestLimitExceeded")
    world.cloud.fail("launch", error)
    world.seed(make_nodepool(), make_nodeclaim())

    with pytest.raises(CreateError):
        await lifecycle.reconcile("claim")

    assert await world.events("LaunchFailed") == [str(error)] * 2


async def test_a_node_is_registered_with_the_labels_and_owner_of_its_claim(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim, ready=False)

    await lifecycle.reconcile("claim")

    node = world.node("node-of-claim")
    assert node is not None
    assert node.metadata.labels[labels.REGISTERED] == "true"
    assert node.metadata.labels[labels.NODEPOOL] == "default"
    assert labels.TERMINATION_FINALIZER in node.metadata.finalizers
    assert [o.uid for o in node.metadata.owner_references] == [claim.metadata.uid]
    assert not [t for t in node.spec.taints if t.key == labels.UNREGISTERED_TAINT]
    registered = world.claim("claim")
    assert registered is not None
    assert conditions.is_true(registered.status.conditions, REGISTERED)
    assert registered.status.node_name == "node-of-claim"


async def test_a_node_is_registered_once_its_partition_is_known(
    world: World, lifecycle: Lifecycle
) -> None:
    untold = make_nodeclaim()
    untold.metadata.labels[labels.PLACEMENT_GROUP_PARTITION] = ""
    world.seed(untold)
    await lifecycle.reconcile("claim")
    claim = world.claim("claim")
    assert claim is not None
    world.join(claim, ready=False)

    assert await lifecycle.reconcile("claim") is not None

    waiting = world.claim("claim")
    assert waiting is not None
    held = conditions.find(waiting.status.conditions, REGISTERED)
    assert held is not None
    assert (held.status, held.reason) == ("Unknown", "RegistrationHookPending")

    instance = world.cloud.instances_by_id[claim.status.provider_id]
    node_labels = {**instance.labels, labels.PLACEMENT_GROUP_PARTITION: "3"}
    world.cloud.instances_by_id[claim.status.provider_id] = dataclasses.replace(
        instance, labels=node_labels
    )
    await lifecycle.reconcile("claim")

    registered, node = world.claim("claim"), world.node("node-of-claim")
    assert registered is not None
    assert node is not None
    assert conditions.is_true(registered.status.conditions, REGISTERED)
    assert registered.metadata.labels[labels.PLACEMENT_GROUP_PARTITION] == "3"
    assert node.metadata.labels[labels.PLACEMENT_GROUP_PARTITION] == "3"


async def test_a_node_that_is_deleted_before_its_registration_is_finalized(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    node = world.join(claim, ready=False)
    kept = {"metadata": {"finalizers": ["example.com/backup"]}}
    await world.api.patch(kinds.NODE, node.metadata.name, kept)
    await world.api.delete(kinds.NODE, node.metadata.name)
    world.see()

    await lifecycle.reconcile("claim")

    left = world.node(node.metadata.name)
    assert left is not None
    assert left.metadata.finalizers == ["example.com/backup"]


async def test_a_ready_node_is_initialized_and_the_claim_becomes_ready(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim)

    await lifecycle.reconcile("claim")

    node, claim_after = world.node("node-of-claim"), world.claim("claim")
    assert node is not None
    assert claim_after is not None
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert conditions.is_true(claim_after.status.conditions, INITIALIZED)
    assert conditions.is_true(claim_after.status.conditions, "Ready")


async def test_a_conflict_with_another_writer_logs_no_step_twice(
    world: World, lifecycle: Lifecycle, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim)
    world.api.refuse(
        "patch/status", ConflictError("it has changed", status=409), kind=kinds.NODE_CLAIM, times=3
    )

    with caplog.at_level("INFO"):
        for _ in range(6):
            with suppress(ConflictError):
                await lifecycle.reconcile("claim")
            world.see()

    steps = [record.getMessage() for record in caplog.records]
    assert steps.count("registered nodeclaim") == 1
    assert steps.count("initialized nodeclaim") == 1
    created = [
        sample.value
        for family in world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "karpenter_nodes_created_total"
    ]
    assert created == [1]


@pytest.mark.parametrize(
    ("ready", "taint", "reason"),
    [
        pytest.param(False, None, "NodeNotReady", id="not ready"),
        pytest.param(
            True, Taint(key="cni", effect="NoSchedule"), "StartupTaintsExist", id="startup taint"
        ),
        pytest.param(
            True,
            Taint(key=labels.UNINITIALIZED_TAINT, effect="NoSchedule"),
            "KnownEphemeralTaintsExist",
            id="ephemeral taint",
        ),
    ],
)
async def test_a_node_that_is_not_initialized_reports_what_is_missing(
    world: World, lifecycle: Lifecycle, ready: bool, taint: Taint | None, reason: str
) -> None:
    claim = await launched(world, lifecycle, startup_taints=[Taint(key="cni", effect="NoSchedule")])
    world.seed(_bootstrapped(world.join(claim, ready=ready, taints=[taint] if taint else [])))

    await lifecycle.reconcile("claim")
    after = world.claim("claim")
    assert after is not None
    assert conditions.find(after.status.conditions, INITIALIZED) is None, "it has just registered"

    world.pass_time(seconds=5)
    await lifecycle.reconcile("claim")

    after = world.claim("claim")
    assert after is not None
    condition = conditions.find(after.status.conditions, INITIALIZED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", reason)


@pytest.mark.parametrize(
    "labelled", [pytest.param(True, id="by others"), pytest.param(False, id="by its kubelet")]
)
async def test_a_node_that_gets_the_unregistered_taint_again_recovers(
    world: World, lifecycle: Lifecycle, labelled: bool
) -> None:
    startup = Taint(key="cni", effect="NoSchedule")
    claim = await launched(world, lifecycle, startup_taints=[startup])
    joined = world.join(claim, ready=False)
    await lifecycle.reconcile("claim")
    registered = world.node("node-of-claim")
    assert registered is not None
    # The owner of the startup taint has removed it since.
    again = Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute")
    spec = msgspec.structs.replace(registered.spec, taints=[again])
    metadata = registered.metadata if labelled else joined.metadata
    ready = [conditions.Condition(type="Ready", status="True")]
    status = msgspec.structs.replace(registered.status, conditions=ready)
    world.seed(Node(metadata=metadata, spec=spec, status=status))

    await lifecycle.reconcile("claim")

    node, after = world.node("node-of-claim"), world.claim("claim")
    assert node is not None
    assert after is not None
    assert node.spec.taints == ([] if labelled else [startup])
    assert node.metadata.labels[labels.REGISTERED] == "true"
    assert conditions.is_true(after.status.conditions, INITIALIZED) == labelled


async def _initialized(world: World, lifecycle: Lifecycle, *startup: Taint) -> NodeClaim:
    taint = Taint(key="team", value="web", effect="NoSchedule")
    claim = await launched(world, lifecycle, taints=[taint], startup_taints=list(startup))
    world.join(claim, taints=[taint])  # the owners of the startup taints have removed them
    world.see()
    await lifecycle.reconcile("claim")
    if startup:
        node = world.node("node-of-claim")
        assert node is not None
        world.seed(changed(node, spec={"taints": [taint]}))
        await lifecycle.reconcile("claim")
    after = world.claim("claim")
    assert after is not None
    assert conditions.is_true(after.status.conditions, "Ready")
    return after


@pytest.mark.parametrize("tainted", [True, False])
async def test_a_node_that_is_created_again_under_its_initialized_claim_is_registered_again(
    world: World, lifecycle: Lifecycle, tainted: bool
) -> None:
    claim = await _initialized(world, lifecycle)
    before = world.node("node-of-claim")
    assert before is not None
    # A user has deleted the Node with its finalizers; its kubelet starts again.
    again = world.join(claim)
    if not tainted:
        world.seed(changed(again, spec={"taints": []}))
    world.see()

    await lifecycle.reconcile("claim")

    node, after = world.node("node-of-claim"), world.claim("claim")
    assert node is not None
    assert after is not None
    assert node.metadata.labels == before.metadata.labels
    assert node.metadata.finalizers == before.metadata.finalizers
    assert node.metadata.owner_references == before.metadata.owner_references
    assert node.spec.taints == before.spec.taints
    assert conditions.is_true(after.status.conditions, "Ready")


async def test_a_node_that_is_created_again_waits_for_its_startup_taints_again(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await _initialized(world, lifecycle, Taint(key="cni", effect="NoSchedule"))
    world.join(claim)
    world.see()

    await lifecycle.reconcile("claim")

    after, node = world.claim("claim"), world.node("node-of-claim")
    assert after is not None
    assert node is not None
    condition = conditions.find(after.status.conditions, INITIALIZED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "StartupTaintsExist")
    assert labels.INITIALIZED not in node.metadata.labels
    assert not conditions.is_true(after.status.conditions, "Ready")

    world.seed(changed(node, spec={"taints": []}))
    await lifecycle.reconcile("claim")

    after, node = world.claim("claim"), world.node("node-of-claim")
    assert after is not None
    assert node is not None
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert conditions.is_true(after.status.conditions, "Ready")


async def test_a_device_plugin_is_not_overdue_right_after_its_node_is_created_again(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await _initialized(world, lifecycle)
    world.pass_time(hours=2)
    wanted = changed(claim, spec={"resources": {"requests": {"nvidia.com/gpu": "1"}}})
    world.seed(wanted)
    world.join(wanted)

    await lifecycle.reconcile("claim")
    assert await world.events("ResourceNotRegistered") == []

    world.pass_time(minutes=11)
    await lifecycle.reconcile("claim")
    assert await world.events("ResourceNotRegistered")


def _bootstrapped(node: Node) -> Node:
    """The bootstrap script registered with the taints itself: they are not synced again."""
    return changed(node, metadata={"labels": {labels.DO_NOT_SYNC_TAINTS: "true"}})


@pytest.mark.parametrize(
    ("launches", "minutes"),
    [pytest.param(False, 6, id="launch"), pytest.param(True, 16, id="node")],
)
async def test_a_claim_that_does_not_register_in_time_is_deleted(
    world: World, lifecycle: Lifecycle, launches: bool, minutes: int
) -> None:
    world.seed(make_nodeclaim())
    if not launches:
        world.cloud.fail("launch", CreateError("no"), times=99)
        with pytest.raises(CreateError):
            await lifecycle.reconcile("claim")
    else:
        await lifecycle.reconcile("claim")

    await _try_each_minute(world, lifecycle, minutes)

    assert world.is_leaving("claim")


async def _try_each_minute(world: World, lifecycle: Lifecycle, minutes: int) -> None:
    """Advance the clock as repeated failures do: the longest pause is a minute."""
    for _ in range(minutes):
        world.pass_time(minutes=1)
        world.see()
        with suppress(CreateError, UnforeseenError, ForbiddenError):
            await lifecycle.reconcile("claim")


async def test_an_old_launch_failure_does_not_count_as_lasting_until_now(
    world: World, lifecycle: Lifecycle
) -> None:
    world.seed(make_nodeclaim())
    world.cloud.fail("launch", CreateError("no"), times=2)
    for _ in range(2):
        with pytest.raises(CreateError):
            await lifecycle.reconcile("claim")
        world.pass_time(minutes=20)
        world.see()

    await lifecycle.reconcile("claim")

    claim = world.claim("claim")
    assert claim is not None
    assert conditions.is_true(claim.status.conditions, LAUNCHED)


class UnforeseenError(RuntimeError):
    """An error that no provider documents."""


async def test_an_unexpected_launch_error_is_reported_and_the_claim_deleted_in_time(
    world: World, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Instance:
        raise UnforeseenError("a field is missing")

    monkeypatch.setattr(world.cloud, "launch", fail)
    world.seed(make_nodeclaim())
    with pytest.raises(UnforeseenError):
        await lifecycle.reconcile("claim")
    world.see()
    claim = world.claim("claim")
    assert claim is not None
    condition = conditions.find(claim.status.conditions, LAUNCHED)
    assert condition is not None
    assert (condition.reason, condition.message) == (
        "LaunchFailed",
        "UnforeseenError: a field is missing",
    )

    await _try_each_minute(world, lifecycle, 6)

    assert world.is_leaving("claim")


async def test_time_in_the_launch_rate_limit_does_not_count_towards_the_timeout(
    world: World, lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_in_vain(*_: object) -> Instance:
        world.pass_time(minutes=7)
        raise ThrottledError("not yet")

    monkeypatch.setattr(world.cloud, "launch", wait_in_vain)
    world.seed(make_nodeclaim())
    for _ in range(5):
        with pytest.raises(ThrottledError):
            await lifecycle.reconcile("claim")
        world.see()
        world.pass_time(minutes=1)
        claim = world.claim("claim")
        assert claim is not None
        assert not claim.metadata.is_deleting

    await lifecycle.reconcile("claim")

    assert world.is_leaving("claim")


async def test_a_claim_that_waited_long_is_not_deleted_at_its_first_failure(
    world: World, lifecycle: Lifecycle
) -> None:
    world.seed(make_nodeclaim())
    world.pass_time(minutes=6)
    for verb in ("patch", "patch/status"):
        world.api.refuse(verb, ApiError("a moment", status=500), kind=kinds.NODE_CLAIM)
    with pytest.raises(ApiError):
        await lifecycle.reconcile("claim")

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting


async def test_a_node_that_does_not_join_is_told_with_what_to_check(
    world: World, lifecycle: Lifecycle
) -> None:
    await launched(world, lifecycle)
    for minutes, instructs in ((2, False), (2, True), (11, True)):
        world.pass_time(minutes=minutes)
        await lifecycle.reconcile("claim")
        found = world.claim("claim")
        assert found is not None
        registered = conditions.find(found.status.conditions, REGISTERED)
        assert registered is not None
        assert ("access entry of the node role" in registered.message) is instructs
    assert world.is_leaving("claim"), "the message does not extend the timeout"


async def test_the_registration_timeout_follows_the_settings(
    world: World, lifecycle: Lifecycle
) -> None:
    patient = dataclasses.replace(lifecycle, registration_timeout=timedelta(minutes=40))
    await launched(world, patient)

    for minutes, is_given_up in ((39, False), (2, True)):
        world.pass_time(minutes=minutes)
        await patient.reconcile("claim")
        assert world.is_leaving("claim") is is_given_up


async def test_a_clock_that_was_ahead_at_the_launch_does_not_extend_the_registration_timeout(
    world: World, lifecycle: Lifecycle
) -> None:
    created = world.now
    claim = await launched(world, lifecycle)
    ahead = created + timedelta(minutes=30)
    late = [Condition(type=REGISTERED, status="Unknown", last_transition_time=ahead)]
    world.seed(
        changed(
            claim,
            metadata={"creationTimestamp": created.isoformat()},
            status={"conditions": to_wire([*true(LAUNCHED, since=ahead), *late])},
        )
    )

    world.pass_time(minutes=14)
    await lifecycle.reconcile("claim")
    assert not world.is_leaving("claim")

    world.pass_time(minutes=2)
    await lifecycle.reconcile("claim")
    assert world.is_leaving("claim")


@pytest.mark.parametrize("status", [403, 422, 500], ids=["forbidden", "invalid", "broken"])
async def test_a_claim_is_deleted_in_time_if_a_webhook_blocks_writes_of_its_node(
    world: World, lifecycle: Lifecycle, status: int
) -> None:
    world.join(await launched(world, lifecycle))
    refusal = ApiError("the webhook says no", status=status)
    world.api.refuse("patch", refusal, kind=kinds.NODE, times=1000)

    for _ in range(14):
        with pytest.raises(ApiError):
            await lifecycle.reconcile("claim")
        world.see()
        world.pass_time(minutes=1)
    assert world.claim("claim") is not None
    world.pass_time(minutes=2)
    await lifecycle.reconcile("claim")

    assert world.is_leaving("claim")


async def test_a_write_conflict_during_a_late_registration_does_not_delete_the_claim(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.pass_time(minutes=16)
    world.join(claim)
    world.api.refuse("patch", ConflictError("it has changed", status=409), kind=kinds.NODE)
    with pytest.raises(ConflictError):
        await lifecycle.reconcile("claim")
    world.see()

    await lifecycle.reconcile("claim")

    claim_now = world.claim("claim")
    assert claim_now is not None
    assert conditions.is_true(claim_now.status.conditions, REGISTERED)
    assert not claim_now.metadata.is_deleting


async def test_a_claim_is_deleted_in_time_if_a_webhook_blocks_its_writes(
    world: World, lifecycle: Lifecycle
) -> None:
    world.seed(make_nodeclaim())
    refusal = ForbiddenError("the webhook says no", status=403)
    for verb in ("patch", "patch/status"):
        world.api.refuse(verb, refusal, kind=kinds.NODE_CLAIM, times=1000)
    with pytest.raises(ForbiddenError):
        await lifecycle.reconcile("claim")

    await _try_each_minute(world, lifecycle, 6)

    assert world.is_leaving("claim")


async def test_a_deleted_claim_deletes_its_node_then_its_instance_then_itself(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim)
    await lifecycle.reconcile("claim")
    await world.api.delete(kinds.NODE_CLAIM, "claim")
    world.see()

    await lifecycle.reconcile("claim")

    node = world.node("node-of-claim")
    assert node is not None
    assert node.metadata.is_deleting, "the node is asked to go first"
    assert world.claim("claim") is not None
    assert not world.cloud.instances_by_id[claim.status.provider_id].deleting

    await world.api.patch(kinds.NODE, "node-of-claim", {"metadata": {"finalizers": []}})
    world.see()
    await lifecycle.reconcile("claim")
    world.see()
    await lifecycle.reconcile("claim")

    assert world.claim("claim") is None
    assert claim.status.provider_id not in world.cloud.instances_by_id


async def test_a_deleted_claim_with_an_unrecorded_launch_leaks_no_instance(
    world: World, lifecycle: Lifecycle
) -> None:
    world.seed(make_nodeclaim())
    claim = world.claim("claim")
    assert claim is not None
    await world.cloud.launch(claim, make_nodeclass())  # and then the controller died
    await world.api.patch(
        kinds.NODE_CLAIM, "claim", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER]}}
    )
    await world.api.delete(kinds.NODE_CLAIM, "claim")

    for _ in range(3):
        world.see()
        await lifecycle.reconcile("claim")

    assert world.claim("claim") is None
    assert not world.cloud.instances_by_id
