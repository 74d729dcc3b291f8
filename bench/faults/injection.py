"""The faults, by name: in calls, processes, instances and objects."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from bench.faults.cluster import Boot, Surroundings
from bench.faults.foreign import ForeignObjects
from bench.faults.region import SIZES, Instance, Region, refusal
from bench.faults.replicas import Controllers
from bench.faults.wires import Call
from controller.apis import kinds
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.fake import FakeApiServer
from controller.aws.errors import UnreachableError
from controller.cloudprovider.errors import CloudProviderError, ThrottledError

Phase = Literal["launch", "replacement", "consolidation", "termination"]
PHASES: tuple[Phase, ...] = ("launch", "replacement", "consolidation", "termination")

Step = tuple[str, str]
"""A call with an effect: its verb and its kind, or its operation and its AWS service."""

LAUNCH_STEPS: tuple[Step, ...] = (
    ("create", "NodeClaim"),
    ("create_launch_template", "ec2"),
    ("create_fleet", "ec2"),
    ("patch", "NodeClaim"),
    ("patch/status", "NodeClaim"),
    ("patch/status", "Pod"),
    ("patch", "Node"),
    ("create_tags", "ec2"),
)
REPLACEMENT_STEPS: tuple[Step, ...] = (
    ("patch", "Node"),
    ("patch/status", "NodeClaim"),
    ("create", "NodeClaim"),
    ("create", "Disruption"),
    ("patch/status", "Disruption"),
    ("create_fleet", "ec2"),
    ("delete", "NodeClaim"),
    ("evict", "Pod"),
)
TERMINATION_STEPS: tuple[Step, ...] = (
    ("delete", "NodeClaim"),
    ("delete", "Node"),
    ("patch/status", "NodeClaim"),
    ("evict", "Pod"),
    ("terminate_instances", "ec2"),
    ("patch", "Node"),
    ("patch", "NodeClaim"),
    ("patch/status", "NodePool"),
)


@dataclass(slots=True)
class Scene:
    """Everything that a fault can act on."""

    api: FakeApiServer
    region: Region
    surroundings: Surroundings
    controllers: Controllers
    foreign: ForeignObjects
    chance: random.Random

    def instances(self) -> list[Instance]:
        """Return Joiner's instances that are pending or running."""
        now = self.region.now()
        return [
            m for m in self.region.instances.values()
            if "foreign" not in m.tags and m.state(now) in ("pending", "running")
        ]  # fmt: skip


@dataclass
class Fault:
    """A fault that lasts for a while. `number` counts the runs with the same fault, from 0."""

    chance: random.Random
    number: int
    phases: tuple[Phase, ...] = field(default=PHASES, kw_only=True)

    async def before(self, call: Call) -> None:
        """Inject the fault before a call has its effect."""

    async def after(self, call: Call) -> None:
        """Inject the fault after a call has had its effect."""

    def answer(self, call: Call, answer: Any) -> Any:
        """Return AWS's answer to a call, as the process receives it."""
        return answer

    def delay(self) -> float:
        """Return the delay of watch events, in seconds."""
        return 0.0

    async def inject(self, scene: Scene) -> None:
        """Act on the scene until cancelled; called once in each of the fault's phases."""

    def end(self, scene: Scene) -> None:
        """Undo the effects from which the cluster would never recover by itself."""

    async def _now_and_then(self, least: float, most: float) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))


@dataclass
class Kill(Fault):
    """The leader is killed at one of the `steps` of its work, up to `most` times in a run.

    A step is a call: a verb and a kind. The steps take turns from run to run, two runs each. With
    an even `number` the leader is killed before the call has its effect, with an odd one after it.
    """

    most: ClassVar = 5
    steps: Sequence[Step]
    kills: int = 0
    _calls: int = 0

    @property
    def step(self) -> Step:
        return self.steps[self.number // 2 % len(self.steps)]

    async def before(self, call: Call) -> None:
        if (call.verb, call.kind) != self.step:
            return
        self._calls += 1
        if self.number % 2 == 0:
            await self._fail_call(call)

    async def after(self, call: Call) -> None:
        if (call.verb, call.kind) == self.step and self.number % 2:
            await self._fail_call(call)

    async def _fail_call(self, call: Call) -> None:
        # Kill at the first matching call, then at the second one after that, and so on.
        if self._calls > self.kills and self.kills < self.most:
            self._calls = 0
            self.kills += 1
            call.process.kill()
            await asyncio.Event().wait()


class LeaderChange(Fault):
    """The leader is asked to stop; another replica takes over."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(5, 40)
            leader = scene.controllers.leader
            if leader is not None and leader.process.task is not None:
                leader.process.task.cancel()


class EditedLeases(Fault):
    """A user edits the Lease by hand: its holder, its duration and its counter."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(10, 60)
            spec = {
                "holderIdentity": self.chance.choice(("", "by-hand")),
                "leaseDurationSeconds": self.chance.choice((1, 15, 2**31 - 1)),
                "leaseTransitions": self.chance.choice((0, 2**31 - 1)),
            }
            with suppress(NotFoundError):
                await scene.controllers.edit_lease(spec)


class PausedLeader(Fault):
    """The leader is paused for 8 to 60 s, and then continues. Its Lease lasts 15 s."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(1, 40)
            leader = scene.controllers.leader
            if leader is None:
                continue
            leader.process.pause()
            try:
                await self._now_and_then(8, 60)
            finally:
                leader.process.resume()


class WatchesCut(Fault):
    """Watches break; changes in the meantime are visible only in a new list."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(1, 15)
            scene.api.break_watches()


@dataclass
class ApiRestart(Fault):
    """The API server is down for a while: calls fail, and every watch breaks."""

    _back_at: float = 0.0

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(10, 40)
            away = self.chance.uniform(3, 25)
            self._back_at = asyncio.get_running_loop().time() + away
            await asyncio.sleep(away)
            scene.api.break_watches()

    async def before(self, call: Call) -> None:
        self._refuse(call)

    async def after(self, call: Call) -> None:
        self._refuse(call)  # the answer is lost

    def delay(self) -> float:
        return max(self._back_at - asyncio.get_running_loop().time(), 0.0)

    def end(self, scene: Scene) -> None:
        self._back_at = 0.0
        scene.api.break_watches()

    def _refuse(self, call: Call) -> None:
        if call.system == "kubernetes" and self.delay():
            raise UnavailableError(f"{call.verb} {call.kind}: connection refused", status=0)


class WatchesLate(Fault):
    """Watch events arrive late, so the controller decides on stale state."""

    def delay(self) -> float:
        return self.chance.choice((0.0, 0.0, 0.1, 2.0))


@dataclass
class Refusal(Fault):
    """Some calls are refused before they have an effect."""

    system: str
    error: Callable[[Call], Exception]
    share: float = 0.4
    concerns: Callable[[Call], bool] = lambda _: True

    async def before(self, call: Call) -> None:
        concerned = call.system == self.system and self.concerns(call)
        if concerned and self.chance.random() < self.share:
            raise self.error(call)


@dataclass
class LostAnswer(Fault):
    """Some calls have their effect, but their answers are lost."""

    system: str
    error: Callable[[Call], Exception]

    async def after(self, call: Call) -> None:
        if call.system == self.system and call.writes and self.chance.random() < 0.3:
            raise self.error(call)


class Malformed(Fault):
    """Some AWS answers are unreadable or lack a field, though the request was carried out."""

    def answer(self, call: Call, answer: Any) -> Any:
        if call.system != "aws" or self.chance.random() >= 0.3:
            return answer
        if self.chance.random() < 0.3:
            raise _unreachable(call)  # an unparsable body counts as no answer
        damaged = copy.deepcopy(answer)
        places = [*_members(damaged)]
        if not places:
            return damaged
        holder, name = self.chance.choice(places)
        del holder[name]
        return damaged


def _members(answer: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every member of every structure in an answer: the structure and the name."""
    if isinstance(answer, list):
        for each in answer:
            yield from _members(each)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            yield answer, name
            yield from _members(value)


@dataclass
class Unauthorized(Fault):
    """One AWS operation is forbidden, another one in each phase."""

    operation: str = ""
    _phase: int = 0

    async def inject(self, scene: Scene) -> None:
        turn = self.number * len(PHASES) + self._phase
        self.operation = OPERATIONS[turn % len(OPERATIONS)]
        self._phase += 1

    async def before(self, call: Call) -> None:
        if call.verb == self.operation:
            raise refusal("UnauthorizedOperation", call.verb, "injected")


@dataclass
class Slow(Fault):
    """Some calls take long."""

    system: str
    seconds: tuple[float, float]

    async def before(self, call: Call) -> None:
        if call.system == self.system and self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.uniform(*self.seconds))


REFUSALS = (
    *["InsufficientInstanceCapacity"] * 3,
    "UnsupportedOperation",
    "InvalidParameterCombination",
)
"""Codes with which EC2 refuses an instance type; missing capacity is the usual one."""


class Exhausted(Fault):
    """EC2 refuses to launch some instance types, a capacity type, or all."""

    async def inject(self, scene: Scene) -> None:
        closed = scene.region.closed
        while True:
            closed.clear()
            scene.region.refuses_with = self.chance.choice(REFUSALS)
            market = self.chance.choice(("spot", "on-demand"))
            some = self.chance.sample(SIZES, 3)
            closed.update((size.name, market) for size in some)
            if self.chance.random() < 0.4:
                closed.add(("*", "spot"))
            if self.chance.random() < 0.2:
                closed.add(("*", "*"))
            await self._now_and_then(10, 60)

    def end(self, scene: Scene) -> None:
        scene.region.closed.clear()


@dataclass
class Joins(Fault):
    """Instances launched during the fault register late, incorrectly, or never."""

    how: str

    async def inject(self, scene: Scene) -> None:
        while True:
            for instance in scene.instances():
                if instance.id not in scene.surroundings.boots:
                    scene.surroundings.boots[instance.id] = self._boot(instance)
            await asyncio.sleep(1)

    def _boot(self, instance: Instance) -> Boot:
        at = instance.launched_at + self.chance.uniform(20, 40)
        if self.chance.random() < 0.6:
            return Boot(at)
        if self.how == "never":
            return Boot(math.inf)
        if self.how == "late":
            return Boot(at + self.chance.uniform(60, 1200))
        wrong = {
            "topology.kubernetes.io/zone": "us-west-2z",
            "karpenter.sh/nodepool": "another",
            "node.kubernetes.io/instance-type": "t2.nano",
        }
        return Boot(at, wrong)


@dataclass
class LostInstances(Fault):
    """Instances vanish, stop, or are terminated by a user."""

    how: str

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(3, 40)
            instances = scene.instances()
            if instances:
                self._take(scene.region, self.chance.choice(instances))

    def _take(self, region: Region, instance: Instance) -> None:
        instance.touched_by_hand = True
        match self.how:
            case "vanish":
                del region.instances[instance.id]
            case "stop":
                instance.stopped = True
                region.announce(instance.id, "stopping")
            case _:
                instance.ended_at = region.now()
                region.announce(instance.id, "shutting-down")


@dataclass
class ReusedNames(Fault):
    """A user terminates instances, and another owner takes their Node names and addresses at once.

    With `recreated`, the user deletes the Node, too, with its finalizers, and the instance may
    still run. The new Node of that name has the provider ID of another owner's instance.
    """

    recreated: bool
    _taken: set[str] = field(default_factory=set)

    async def inject(self, scene: Scene) -> None:
        await asyncio.gather(self._end_some(scene), self._take_names(scene))

    async def _end_some(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(5, 40)
            # An instance whose node name was taken has no Node any more, and that name is not
            # Joiner's.
            instances = [
                instance
                for instance in scene.instances()
                if instance.id in scene.surroundings.joined and instance.hostname not in self._taken
            ]
            if not instances:
                continue
            instance = self.chance.choice(instances)
            instance.touched_by_hand = True
            if not self.recreated or self.chance.random() < 0.5:
                instance.ended_at = scene.region.now()
                scene.region.announce(instance.id, "shutting-down")
            if self.recreated:
                await _delete_with_finalizers(scene, kinds.NODE, instance.hostname)
                self._take(scene, instance.hostname)

    async def _take_names(self, scene: Scene) -> None:
        while True:
            for name in scene.region.free_hostnames():
                if scene.api.find(kinds.NODE, name) is None:
                    self._take(scene, name)
            await asyncio.sleep(0.05)

    def _take(self, scene: Scene, name: str) -> None:
        if name not in self._taken:
            self._taken.add(name)
            scene.foreign.replace(name, self.number)


class RejoiningNodes(Fault):
    """A user deletes Nodes with their finalizers, and their kubelets create them again."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(3, 40)
            joined = scene.surroundings.joined
            instances = [each for each in scene.instances() if each.id in joined]
            if not instances:
                continue
            instance = self.chance.choice(instances)
            instance.touched_by_hand = True  # without its Node, no controller can drain it
            await _delete_with_finalizers(scene, kinds.NODE, instance.hostname)
            try:
                await self._now_and_then(2, 60)
            finally:
                joined.discard(instance.id)


class EditedClaims(Fault):
    """A user changes which instance the status of a NodeClaim names, and sets it back later."""

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(3, 30)
            claims = [
                claim
                for claim in scene.api.objects(kinds.NODE_CLAIM)
                if claim.status.provider_id and "foreign" not in claim.metadata.labels
            ]
            if not claims:
                continue
            claim = self.chance.choice(claims)
            await self._name_instance(scene, claim, "aws:///us-west-2a/i-0123456789abcdef0")
            try:
                await self._now_and_then(5, 60)
            finally:
                await self._name_instance(scene, claim, claim.status.provider_id)

    async def _name_instance(self, scene: Scene, claim: NodeClaim, provider_id: str) -> None:
        status = {"status": {"providerID": provider_id}}
        with suppress(NotFoundError):
            await scene.api.patch(
                kinds.NODE_CLAIM, claim.metadata.name, status, subresource="status"
            )


class ReusedAddresses(Fault):
    """A user terminates instances, and their replacements get the same addresses.

    Their Nodes therefore have the same names.
    """

    async def inject(self, scene: Scene) -> None:
        scene.region.reuses_addresses = True
        while True:
            await self._now_and_then(3, 30)
            instances = scene.instances()
            if instances:
                instance = self.chance.choice(instances)
                instance.touched_by_hand = True
                instance.ended_at = scene.region.now()


class SecondKarpenter(Fault):
    """A second Karpenter on EC2 creates NodeClaims, whose status follows a moment later.

    Runs alternate: its instances have tags or none, and its EC2NodeClass is in the cluster or not.
    """

    async def inject(self, scene: Scene) -> None:
        if self.number // 2 % 2 == 0:
            scene.foreign.add_second_class()
        while True:
            await self._now_and_then(3, 30)
            await scene.foreign.add_second_karpenters(self.chance, is_tagged=self.number % 2 == 0)


@dataclass
class Deletions(Fault):
    """A user deletes objects, with their finalizers or without."""

    kind: kinds.Kind[Any]
    forced: bool

    async def inject(self, scene: Scene) -> None:
        while True:
            await self._now_and_then(3, 30)
            names = [
                body["metadata"]["name"] for body in scene.api.bodies(self.kind)
                if "foreign" not in body["metadata"].get("labels", {})
            ]  # fmt: skip
            if not names:
                continue
            name = self.chance.choice(names)
            if self.forced and (instance := await self._instance(scene, name)) is not None:
                # Without its NodeClaim or its Node, no controller can drain its instance.
                instance.touched_by_hand = True
            if self.forced:
                await _delete_with_finalizers(scene, self.kind, name)
            else:
                await scene.api.delete(self.kind, name)

    async def _instance(self, scene: Scene, name: str) -> Instance | None:
        """Return the instance of a NodeClaim or Node."""
        read = await scene.api.get(self.kind, name)
        provider_id = read.spec.provider_id if isinstance(read, Node) else read.status.provider_id
        return scene.region.instances.get(provider_id.rpartition("/")[2])


async def _delete_with_finalizers(scene: Scene, kind: kinds.Kind[Any], name: str) -> None:
    """Delete an object and remove its finalizers, if it exists."""
    try:
        await scene.api.delete(kind, name)
        await scene.api.patch(kind, name, {"metadata": {"finalizers": None}})
    except NotFoundError:
        return


class Messages(Fault):
    """Bursts of messages in the interruption queue: foreign, duplicate, malformed, and valid."""

    async def inject(self, scene: Scene) -> None:
        while True:
            for _ in range(self.chance.randint(50, 150)):
                self._send(scene)
            await self._now_and_then(5, 40)

    def _send(self, scene: Scene) -> None:
        instances = [m.id for m in scene.instances()]
        known = self.chance.choice(instances) if instances and self.chance.random() < 0.02 else ""
        event = {
            "version": self.chance.choice(("0", "0", "0", "7")),
            "source": "aws.ec2",
            "detail-type": self.chance.choice(
                (
                    "EC2 Spot Instance Interruption Warning",
                    "EC2 Instance Rebalance Recommendation",
                    "Unknown Detail Type",
                )
            ),
            "detail": {"instance-id": known or f"i-{self.chance.getrandbits(68):017x}"},
        }
        text = json.dumps(event)
        if self.chance.random() < 0.1:
            text = self.chance.choice((text[: len(text) // 2], "null", "[]", "", '{"detail": 3}'))
        for _ in range(self.chance.choice((1, 1, 2))):
            scene.region.send(text)


class ClockJumps(Fault):
    """The wall clock of each process jumps, independently of the others."""

    async def inject(self, scene: Scene) -> None:
        while True:
            for replica in scene.controllers.replicas:
                if replica is not None:
                    replica.process.clock_error = self.chance.uniform(-1800, 1800)
            await self._now_and_then(5, 60)

    def end(self, scene: Scene) -> None:
        for replica in scene.controllers.replicas:
            if replica is not None:
                replica.process.clock_error = 0.0


@dataclass
class Mix(Fault):
    """Several faults at once."""

    def __post_init__(self) -> None:
        names = self.chance.sample([name for name in FAULTS if name != "mix"], 3)
        self.parts = [FAULTS[name](self.chance, self.chance.randrange(30)) for name in names]

    async def before(self, call: Call) -> None:
        for part in self.parts:
            await part.before(call)

    async def after(self, call: Call) -> None:
        for part in self.parts:
            await part.after(call)

    def answer(self, call: Call, answer: Any) -> Any:
        for part in self.parts:
            answer = part.answer(call, answer)
        return answer

    def delay(self) -> float:
        return max(part.delay() for part in self.parts)

    async def inject(self, scene: Scene) -> None:
        await asyncio.gather(*(part.inject(scene) for part in self.parts))

    def end(self, scene: Scene) -> None:
        for part in self.parts:
            part.end(scene)


def _api(error: type[ApiError], status: int) -> Callable[[Call], Exception]:
    return lambda call: error(f"{call.verb} {call.kind}: injected", status=status)


def _aws(code: str) -> Callable[[Call], Exception]:
    return lambda call: refusal(code, call.verb, "injected")


def _throttling_error(call: Call) -> CloudProviderError:
    return ThrottledError(f"{call.verb}: injected (RequestLimitExceeded)")


def _unreachable(call: Call) -> CloudProviderError:
    return UnreachableError(f"{call.verb}: injected: read timeout")


_REFUSED_WRITES = (
    ("create", "NodeClaim"),
    ("patch", "NodeClaim"),
    ("patch/status", "NodeClaim"),
    ("patch", "Node"),
    ("evict", "Pod"),
    ("delete", "NodeClaim"),
    ("delete", "Node"),
    ("patch/status", "NodePool"),
)


def _webhook(chance: random.Random, number: int) -> Fault:
    verb, kind = _REFUSED_WRITES[number % len(_REFUSED_WRITES)]
    error, status = ((InvalidError, 422), (ForbiddenError, 403), (UnavailableError, 500))[
        number % 3
    ]
    return Refusal(
        chance, number, "kubernetes", _api(error, status), share=1.0,
        concerns=lambda call: (call.verb, call.kind) == (verb, kind),
    )  # fmt: skip


OPERATIONS = (
    "create_fleet",
    "terminate_instances",
    "describe_instances",
    "create_launch_template",
    "create_tags",
    "describe_subnets",
    "get_parameter",
    "receive_message",
    "describe_instance_types",
    "describe_launch_templates",
    "delete_message_batch",
    "get_instance_profile",
    "describe_cluster",
    "delete_launch_template",
    "describe_instance_type_offerings",
    "describe_security_groups",
    "describe_spot_price_history",
    "get_products",
    "create_instance_profile",
    "describe_images",
    "add_role_to_instance_profile",
    "describe_instance_status",
    "get_queue_url",
    "remove_role_from_instance_profile",
    "list_instance_profiles",
    "delete_instance_profile",
)


def _quota(chance: random.Random, number: int) -> Fault:
    code = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "MaxFleetCountExceeded")[
        number % 3
    ]
    return Refusal(
        chance, number, "aws", _aws(code), share=0.7,
        concerns=lambda call: call.verb == "create_fleet",
    )  # fmt: skip


@dataclass
class PartialFleets(Fault):
    """A fleet gets only some of the instances that it asks for."""

    phases: tuple[Phase, ...] = field(default=("launch", "replacement"), kw_only=True)

    async def inject(self, scene: Scene) -> None:
        while True:
            scene.region.most_at_once = self.chance.choice((1, 2, 3, 1000))
            await self._now_and_then(2, 30)

    def end(self, scene: Scene) -> None:
        scene.region.most_at_once = 1000


FAULTS: Mapping[str, Callable[[random.Random, int], Fault]] = {
    "kill-launch": lambda c, n: Kill(c, n, LAUNCH_STEPS, phases=("launch",)),
    "kill-replacement": lambda c, n: Kill(c, n, REPLACEMENT_STEPS, phases=("replacement",)),
    "kill-termination": lambda c, n: Kill(
        c, n, TERMINATION_STEPS, phases=("consolidation", "termination")
    ),
    "leader-change": LeaderChange,
    "paused-leader": PausedLeader,
    "lease-edited": EditedLeases,
    "watches-cut": WatchesCut,
    "watches-late": WatchesLate,
    "api-throttled": lambda c, n: Refusal(c, n, "kubernetes", _api(TooManyRequestsError, 429)),
    "api-conflict": lambda c, n: Refusal(
        c, n, "kubernetes", _api(ConflictError, 409), concerns=lambda call: call.writes
    ),
    "api-failing": lambda c, n: Refusal(c, n, "kubernetes", _api(UnavailableError, 500)),
    "api-lost-answer": lambda c, n: LostAnswer(c, n, "kubernetes", _api(UnavailableError, 0)),
    "api-slow": lambda c, n: Slow(c, n, "kubernetes", (0.5, 15.0)),
    "api-restart": ApiRestart,
    "webhook": _webhook,
    "cloud-throttled": lambda c, n: Refusal(c, n, "aws", _throttling_error, share=0.5),
    "cloud-exhausted": Exhausted,
    "cloud-quota": _quota,
    "cloud-unauthorized": Unauthorized,
    "cloud-failing": lambda c, n: Refusal(c, n, "aws", _aws("InternalError")),
    "cloud-lost-answer": lambda c, n: LostAnswer(c, n, "aws", _unreachable),
    "cloud-slow": lambda c, n: Slow(c, n, "aws", (2.0, 60.0)),
    "cloud-malformed": Malformed,
    "never-join": lambda c, n: Joins(c, n, "never"),
    "late-join": lambda c, n: Joins(c, n, "late"),
    "wrong-labels": lambda c, n: Joins(c, n, "wrong"),
    "vanish": lambda c, n: LostInstances(c, n, "vanish"),
    "stop": lambda c, n: LostInstances(c, n, "stop"),
    "ended-by-hand": lambda c, n: LostInstances(c, n, "terminate"),
    "node-deleted": lambda c, n: Deletions(c, n, kinds.NODE, forced=n % 3 == 2),
    "claim-deleted": lambda c, n: Deletions(c, n, kinds.NODE_CLAIM, forced=n % 3 == 2),
    "claim-edited": EditedClaims,
    "name-reused": lambda c, n: ReusedNames(c, n, recreated=False),
    "node-recreated": lambda c, n: ReusedNames(c, n, recreated=True),
    "address-reused": ReusedAddresses,
    "node-rejoined": RejoiningNodes,
    "second-karpenter": SecondKarpenter,
    "message-storm": Messages,
    "clock-jump": ClockJumps,
    "cloud-partial": PartialFleets,
    "mix": Mix,
}
"""The faults by name: functions of a random generator and of `Fault.number`."""
