"""Carries out commands: taints nodes, creates replacements, deletes NodeClaims, undoes failures.

The controller first marks the nodes of a command: with a taint, so that kube-scheduler binds no pod
there, and with the condition `DisruptionReason` on the NodeClaim. Then it creates the replacements.
Once these are initialized, it deletes the NodeClaims of the marked nodes. A mark is valid only
while its command is in flight (started by this process, or recorded by an earlier leader) or its
node is being rebooted. In every round the controller removes all other marks, such as those of a
failed write, a failed deletion or a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.disruption import Disruption
from controller.apis.karpenter.nodeclaim import (
    DISRUPTION_REASON,
    INITIALIZED,
    REBOOTING,
    REGISTERED,
    NodeClaim,
)
from controller.apis.kinds import NODE, NODE_CLAIM, POD
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.methods.rollout import since
from controller.disruption.pods import DISRUPTED
from controller.disruption.problem import DisruptionProblem
from controller.disruption.records.proposals import rest_of
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.disruption.history import History
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import (
    apply_patch,
    delete,
    with_condition,
    with_conditions,
    with_drain_until,
)
from controller.state.gangs import GangReader, stays
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable
from controller.telemetry.logs import ChangeMonitor

RETRY = timedelta(seconds=1)
"""How soon to check a command in flight again."""

IDLE = timedelta(seconds=10)

DELETION_TIMEOUT = timedelta(minutes=10)
"""How long the deletion of a NodeClaim is retried while the API server does not answer."""

READINESS = timedelta(minutes=10), timedelta(hours=1)
READINESS_PER_NODE = timedelta(milliseconds=80)
"""How long replacements may take to initialize: `READINESS_PER_NODE` for each node being disrupted,
within the minimum and maximum of `READINESS`."""

NOMINATED_FOR = timedelta(hours=1)
"""How long a node is nominated for pods that are still on other nodes, so that it is not
disrupted."""

HANDOVER = timedelta(minutes=10)
"""How long an initialized replacement whose command is no longer in flight is not disrupted while
nodes that it replaces still exist."""

FAILURE_PAUSE = timedelta(minutes=1)
"""How long a node is not disrupted again after its disruption failed."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class InFlightCommand:
    """A command that is being carried out.

    `left` are the candidates whose NodeClaims are still to be deleted, `replacements` the
    NodeClaims created to replace them. `failed` is True if a candidate could not be disrupted;
    `why` is the reason. `deleting_since` is the time from which NodeClaims may be deleted.
    `record` is the name of the Disruption object. `keeps_gangs` is True if the command ends
    when a gang starts on its nodes after the decision.
    """

    command: Command
    since: datetime
    left: list[Candidate]
    keeps_gangs: bool = False
    replacements: tuple[NodeClaim, ...] = ()
    failed: bool = False
    why: str = ""
    deleting_since: datetime | None = None
    record: str = ""


@dataclass(slots=True)
class Orchestrator(PortUser):
    """Carries out each command step by step; every step is safe to repeat."""

    ports: Ports
    writer: ClaimWriter
    history: History
    _in_flight: list[InFlightCommand] = field(default_factory=list)
    _backed_off: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changes: ChangeMonitor = field(default_factory=ChangeMonitor)

    async def run_once(self) -> timedelta:
        """Advance the commands in flight; returns when to advance them again."""
        await self.advance()
        return RETRY if self._in_flight else IDLE

    @property
    def backed_off(self) -> frozenset[str]:
        """The names of nodes whose disruption failed within `FAILURE_PAUSE`."""
        now = self.clock()
        self._backed_off = {
            uid: (name, since)
            for uid, (name, since) in self._backed_off.items()
            if since <= now < since + FAILURE_PAUSE
        }
        return frozenset(name for name, _ in self._backed_off.values())

    @property
    def pending_replacements(self) -> Mapping[str, str]:
        """The names of an earlier leader's uninitialized replacements, by replaced node.

        The replaced nodes need no other replacement.
        """
        return {
            node: claim.metadata.name
            for claim, nodes in self._orphans()
            if not conditions.is_true(claim.status.conditions, INITIALIZED)
            for node in nodes
        }

    @property
    def kept(self) -> Mapping[str, str]:
        """Why replacements whose command is no longer in flight are not disrupted, by node name.

        An earlier leader began the command, or the replaced nodes are being drained. These nodes
        are empty until pods move there. Without this rule, the controller would delete them and
        launch the same nodes again.
        """
        existing = {node.metadata.name for node in self.cluster.list(NODE)}
        kept = {}
        for claim, nodes in self._orphans():
            left = existing.intersection(nodes)
            replacement = self.cluster.node_of(claim)
            if (
                left
                and replacement is not None
                and self.clock() < since(claim, INITIALIZED) + HANDOVER
            ):
                kept[replacement.metadata.name] = f"Node replaces {min(left)}, which still exists"
        return kept

    def _orphans(self) -> Iterator[tuple[NodeClaim, Sequence[str]]]:
        """Yield replacements without a command in flight, and the nodes that they replace."""
        own = {
            replacement.metadata.uid
            for in_flight in self._in_flight
            for replacement in in_flight.replacements
        }
        for claim in self.cluster.list(NODE_CLAIM):
            replaced = claim.metadata.annotations.get(labels.REPLACES)
            if replaced and claim.metadata.uid not in own and not claim.metadata.is_deleting:
                yield claim, replaced.split(",")

    async def begin(
        self,
        command: Command,
        problem: DisruptionProblem,
        *,
        record: str = "",
    ) -> bool:
        """Mark a command's nodes and create its replacements; returns whether it is in flight.

        The NodeClaims are deleted once the replacements are initialized. For a command that
        reboots its node, only the reboot is requested; returns whether it is. `problem` is the
        input of the decision; `record` is the name of the approved Disruption, if any.
        """
        known = self._as_known(command)
        if known is None:
            log.info("nodes changed before disruption; deciding again", extra=log_fields(command))
            return False
        log.info("disrupting nodes", extra={**log_fields(known), "why": known.why})
        if known.reboots:
            return await self._reboot(known, record)
        in_flight = InFlightCommand(
            command=known,
            since=self.clock(),
            left=list(known.candidates),
            # Node repair restarts the gangs of its nodes.
            keeps_gangs=problem.scheduling.gangs and known.reason is not Reason.UNHEALTHY,
        )
        could = await gather_all(*(self._mark(c, in_flight) for c in known.candidates))
        marked = [
            candidate for candidate, done in zip(known.candidates, could, strict=True) if done
        ]
        is_whole = bool(known.replacements or known.gangs)
        if is_whole and len(marked) < len(known.candidates):
            return False  # the next round removes the marks
        if marked:
            in_flight.command = replace(known, candidates=tuple(marked))
            if not await self._make_replacements(in_flight, problem):
                await self._give_up_all(in_flight, "no replacement could be created")
                self.metrics.record_failure(in_flight.command)
                return False
            # No await between the last create request and this line: otherwise another task would
            # count both the nodes and their replacements as staying.
            self.cluster.mark_for_deletion(*(candidate.claim.metadata.name for candidate in marked))
            self.metrics.record_decision(in_flight.command)
            for name, pods in self._destinations(in_flight):
                self.writer.expect(name, pods, NOMINATED_FOR)
            await self._report_launching(in_flight)
            in_flight.record = await self.history.record_start(
                in_flight.command, in_flight.replacements, record
            )
        in_flight.left = marked
        self._in_flight.append(in_flight)
        await self.advance()
        return bool(marked)

    async def resume(self, problem: DisruptionProblem) -> bool:
        """Resume the commands of an earlier leader, so that replacements are not created twice.

        Returns whether the history could be read.
        """
        records = await self.history.unfinished_commands()
        for record in records or ():
            in_flight = self._take_over(record, problem)
            if in_flight is None:
                await self.history.abandon(record)
                continue
            command = in_flight.command
            log.info(
                "resuming disruption of nodes that an earlier leader began",
                extra=log_fields(command),
            )
            self.cluster.mark_for_deletion(*(c.claim.metadata.name for c in command.candidates))
            for name, pods in self._destinations(in_flight):
                self.writer.expect(name, pods, NOMINATED_FOR)
            self._in_flight.append(in_flight)
        return records is not None

    def _take_over(self, record: Disruption, problem: DisruptionProblem) -> InFlightCommand | None:
        """Return a recorded command as in flight.

        None if nothing of it can be resumed or a replacement is missing.
        """
        command = rest_of(record.spec, problem)
        made = [self.cluster.get(NODE_CLAIM, name) for name in record.status.replacements]
        replacements = [
            replacement
            for replacement in made
            if replacement is not None and not replacement.metadata.is_deleting
        ]
        if command is None or len(replacements) < len(command.replacements):
            return None
        return InFlightCommand(
            command=command,
            since=record.status.begun_at or self.clock(),
            left=list(command.candidates),
            replacements=tuple(replacements),
            record=record.metadata.name,
        )

    async def advance(self) -> None:
        """Advance every command in flight as far as possible."""
        async with self._lock:  # two concurrent runs would count each deletion twice
            for in_flight in tuple(self._in_flight):
                if await self._may_delete(in_flight):
                    ended = await gather_all(*(self._delete(c, in_flight) for c in in_flight.left))
                    in_flight.left = [
                        c for c, done in zip(in_flight.left, ended, strict=True) if not done
                    ]
                if in_flight.failed and not in_flight.left:
                    self.metrics.record_failure(in_flight.command)
                if not in_flight.left:
                    await self.history.record_end(
                        in_flight.record, failed=in_flight.failed, why=in_flight.why
                    )
            self._in_flight = [one for one in self._in_flight if one.left]

    async def remove_stale_marks(self) -> None:
        """Remove taint and condition of a disruption from nodes that no command disrupts.

        Nodes that are being rebooted or deleted keep them.
        """
        for state in self.cluster.state_nodes(self.clock()):
            stays = state.node is not None and not state.deleting and not _is_rebooted(state)
            if stays and _is_marked(state):
                await self._unmark(state)

    async def _reboot(self, command: Command, record: str) -> bool:
        """Request the reboot of a command's node; returns whether it is requested.

        The reconciler `termination.reboot` reboots the node.
        """
        (candidate,) = command.candidates
        claim, bound = candidate.claim, command.drain_bound
        drain = None if bound is None else durations.format_duration(bound)
        annotations = {labels.REBOOT_TERMINATION_GRACE_PERIOD: drain}
        annotated = {"metadata": {"annotations": annotations}}
        found = conditions.find(candidate.node.status.conditions, command.condition)
        why = f"{command.condition}/{found.reason}" if found is not None else command.condition
        reason = command.reason.value
        try:
            claim = await apply_patch(self.ports, claim, annotated)
            claim = await with_condition(
                self.ports, claim, DISRUPTION_REASON, "True", reason=reason, message=reason
            )
            await with_condition(
                self.ports,
                claim,
                REBOOTING,
                "True",
                reason="RebootRequested",
                message=f"rebooting for {why}",
            )
        except (ConflictError, NotFoundError) as error:
            fields = _failure_fields(candidate.name, candidate.claim, error)
            log.info("node changed before its reboot; deciding again", extra=fields)
            return False
        self.metrics.record_decision(command)
        name = await self.history.record_start(command, (), record)
        await self.history.record_end(name, failed=False)
        return True

    # Replacements.

    async def _make_replacements(
        self, in_flight: InFlightCommand, problem: DisruptionProblem
    ) -> bool:
        """Create the NodeClaims of a command's replacements; returns whether all were created."""
        command, types = in_flight.command, problem.snapshot.instance_types
        if not all(self.writer.within_limits(command.replacements, types, replacing=True)):
            return False
        replaces = {labels.REPLACES: ",".join(sorted(command.names))}
        for node in command.replacements:
            replacement = replace(node, annotations={**node.annotations, **replaces})
            pool, seen = problem.node_pools[node.node_pool], types.get(node.node_pool, ())
            try:
                claim = await self.writer.create(
                    replacement, pool, seen, reason=command.reason.label
                )
            except ApiError as error:
                if self._changes.has_changed(f"{node.node_pool}: {error}"):
                    fields = {"NodePool": node.node_pool, "replaces": sorted(command.names)}
                    log.warning("cannot create replacement nodeclaim: %s", error, extra=fields)
                return False
            if claim is None:
                return False
            in_flight.replacements = (*in_flight.replacements, claim)
        return True

    async def _may_delete(self, in_flight: InFlightCommand) -> bool:
        """Whether the NodeClaims may be deleted, because all replacements are initialized.

        Ends the command if a replacement was deleted or is not initialized in time, or if a gang of
        its nodes now runs on other nodes, too, or has started there since the decision.
        """
        if in_flight.deleting_since is not None:
            return True
        now = self.clock()
        waiting: list[NodeClaim] = []
        for replacement in in_flight.replacements:
            known = self._current(replacement)
            if known is None or known.metadata.is_deleting:
                why = f"replacement {replacement.metadata.name} was deleted"
                await self._give_up_all(in_flight, why)
                return False
            if not conditions.is_true(known.status.conditions, INITIALIZED):
                waiting.append(known)
        if not waiting:
            try:
                split = self._spread(in_flight.command) or await self._arrived_gang(in_flight)
            except ApiError:
                return False  # asked again in the next round
            if split:
                await self._give_up_all(in_flight, split)
                return False
            in_flight.deleting_since = now
            return True
        timeout = self._readiness()
        if now >= in_flight.since + timeout:
            names = ", ".join(claim.metadata.name for claim in waiting)
            await self._give_up_all(
                in_flight,
                f"not initialized within {timeout.total_seconds() / 60:.0f} min: {names}",
            )
            return False
        for claim in waiting:
            message = "Waiting on readiness to continue disruption"
            await self.recorder.publish(claim, "Normal", "DisruptionWaitingReadiness", message)
        return False

    def _spread(self, command: Command) -> str:
        """Return which gang of a command's nodes runs on another node too, empty if none does.

        Pending pods of the gang may have been bound there while replacements started.
        """
        for gang in command.gangs:
            on = {pod.spec.node_name for pod in self.cluster.pods_of_gang(gang) if stays(pod)}
            for name in sorted(on - {"", *command.names}):
                state = self.cluster.state_node(name)
                if state is None or not state.deleting:
                    return f"gang {gang} runs on node {name}, too"
        return ""

    async def _arrived_gang(self, in_flight: InFlightCommand) -> str:
        """Return which gang has started on the command's nodes since the decision, if any.

        Its pods were bound before the nodes had their taint. The cluster's mirror may not have them
        yet, so they are read from the API server. Other pods of the gang may start elsewhere.

        Raises:
            ApiError: the pods cannot be read.

        """
        if not in_flight.keeps_gangs:
            return ""
        known = {pod.key for candidate in in_flight.command.candidates for pod in candidate.pods}
        reader = GangReader(self.cluster.pod_groups())
        for name in sorted(in_flight.command.names):
            for pod in await self.api.list(POD, field_selector=f"spec.nodeName={name}"):
                if pod.key not in known and stays(pod) and (gang := reader.gang_of(pod)):
                    return f"gang {gang} has started on node {name}"
        return ""

    def _readiness(self) -> timedelta:
        shortest, longest = READINESS
        queued = sum(len(in_flight.command.candidates) for in_flight in self._in_flight)
        return min(max(queued * READINESS_PER_NODE, shortest), longest)

    def _destinations(self, in_flight: InFlightCommand) -> Iterator[tuple[str, list[Pod]]]:
        """Yield the names of destination nodes or NodeClaims, with the pods to move there."""
        command = in_flight.command
        destinations = [
            *command.moves.items(),
            *(
                (replacement.metadata.name, node.pods)
                for replacement, node in zip(
                    in_flight.replacements, command.replacements, strict=False
                )
            ),
        ]
        for name, keys in destinations:
            pods = map(self.cluster.pod, keys)
            yield name, [pod for pod in pods if pod is not None]

    async def _report_launching(self, in_flight: InFlightCommand) -> None:
        names = ", ".join(sorted(in_flight.command.names)[:3])
        message = f"Launching NodeClaim: {in_flight.command.reason.value} (replaces {names})"
        for replacement in in_flight.replacements:
            await self.recorder.publish(replacement, "Normal", "DisruptionLaunching", message)

    # Nodes that are disrupted.

    def _as_known(self, command: Command) -> Command | None:
        """Return the command with its current nodes and NodeClaims.

        Returns None if one of them was replaced, is being deleted, or is in another command.
        """
        taken = {
            c.claim.metadata.uid
            for in_flight in self._in_flight
            for c in in_flight.command.candidates
        }
        known = []
        for candidate in command.candidates:
            node, claim = self.cluster.get(NODE, candidate.name), self._current(candidate.claim)
            if (
                node is None
                or node.metadata.uid != candidate.node.metadata.uid
                or node.metadata.is_deleting
                or claim is None
                or claim.metadata.is_deleting
                or claim.metadata.uid in taken
            ):
                return None
            known.append(replace(candidate, node=node, claim=claim))
        return replace(command, candidates=tuple(known))

    async def _mark(self, candidate: Candidate, in_flight: InFlightCommand) -> bool:
        node, reason = candidate.node, in_flight.command.reason
        taints = [*(t for t in node.spec.taints if t.key != DISRUPTED.key), DISRUPTED]
        tainted = {"spec": {"taints": to_wire(taints)}}
        try:
            await apply_patch(self.ports, node, tainted)
            await with_condition(
                self.ports,
                candidate.claim,
                DISRUPTION_REASON,
                "True",
                reason=reason.value,
                message=reason.value,
            )
        except (ConflictError, NotFoundError) as error:
            # It changed since the decision: the next round decides again.
            fields = _failure_fields(candidate.name, candidate.claim, error)
            log.info("node changed before disruption; deciding again", extra=fields)
            return False
        except ApiError as error:
            self._give_up(candidate, in_flight, str(error))
            return False
        return True

    async def _delete(self, candidate: Candidate, in_flight: InFlightCommand) -> bool:
        """Delete a NodeClaim; returns whether it is deleted or the controller gave up."""
        if not self._is_deleting(candidate):
            try:
                await self._request_deletion(candidate, in_flight.command.drain_bound)
            except (UnavailableError, TooManyRequestsError) as error:
                # The API server may have accepted the request or may still accept it: try again.
                if self.clock() < (in_flight.deleting_since or in_flight.since) + DELETION_TIMEOUT:
                    return False
                self._give_up(candidate, in_flight, str(error))
                return True
            except ApiError as error:
                self._give_up(candidate, in_flight, str(error))
                return True
        reason = in_flight.command.reason
        chosen = candidate.node_pool.spec.disruption.consolidation_policy
        policy = chosen if in_flight.command.consolidation_type else ""
        moving = len(candidate.moving)
        self.metrics.record_disruption(candidate.claim, reason.label, pods=moving, policy=policy)
        if reason is Reason.UNHEALTHY:
            command = in_flight.command
            self.metrics.record_repair(candidate.claim, command.condition, command.drain_bound)
        message = f"Disrupting Node: {reason.value}"
        await self.recorder.publish_all(
            (candidate.node, candidate.claim), "Normal", "DisruptionTerminating", message
        )
        return True

    async def _request_deletion(self, candidate: Candidate, drain_bound: timedelta | None) -> None:
        claim = candidate.claim
        if drain_bound is not None:
            end = self.clock() + drain_bound
            with contextlib.suppress(NotFoundError):
                await with_drain_until(self.ports, self._current(claim) or claim, end)
        await delete(self.api, claim)

    def _is_deleting(self, candidate: Candidate) -> bool:
        """Whether the NodeClaim is deleted or being deleted."""
        known = self._current(candidate.claim)
        return known is None or known.metadata.is_deleting

    def _current(self, claim: NodeClaim) -> NodeClaim | None:
        """Return the current NodeClaim; None if it is deleted."""
        known = self.cluster.get(NODE_CLAIM, claim.metadata.name)
        return known if known is not None and known.metadata.uid == claim.metadata.uid else None

    # Failures.

    async def _give_up_all(self, in_flight: InFlightCommand, why: str) -> None:
        """Give up a command: keep its nodes, and delete the replacements that are not needed."""
        for name, pods in self._destinations(in_flight):
            self.cluster.withdraw(name, pods)
        for replacement in in_flight.replacements:
            await self._dismiss(replacement)
        self._keep(in_flight.command.candidates, in_flight)
        in_flight.left, in_flight.why = [], why
        if self._changes.has_changed(", ".join(sorted(in_flight.command.names)), why):
            log.warning(
                "cannot disrupt nodes; keeping them and trying again later: %s",
                why,
                extra=log_fields(in_flight.command),
            )

    async def _dismiss(self, replacement: NodeClaim) -> None:
        """Delete a replacement unless it registered or has pods.

        A registered node is kept, as in Karpenter: it may initialize soon, and users can read on
        it why it has not.
        """
        known = self._current(replacement)
        if known is None or known.metadata.is_deleting or self._is_needed(known):
            return
        log.info(
            "deleting replacement nodeclaim, because the disruption that it was created for failed",
            extra={
                "NodeClaim": known.metadata.name,
                "provider-id": known.status.provider_id,
            },
        )
        try:
            await delete(self.api, known)
        except ApiError as error:
            # Emptiness deletes it later.
            fields = {"NodeClaim": known.metadata.name, "error": str(error)}
            log.info(
                "cannot delete replacement nodeclaim; emptiness deletes it later", extra=fields
            )

    def _is_needed(self, claim: NodeClaim) -> bool:
        """Whether a NodeClaim is registered, or pods run there or are nominated for it."""
        if conditions.is_true(claim.status.conditions, REGISTERED):
            return True
        node = self.cluster.node_of(claim)
        name = node.metadata.name if node is not None else claim.metadata.name
        coming = (claim.metadata.name, name)
        return any(map(is_reschedulable, self.cluster.pods_on(name))) or any(
            map(self.cluster.nominated_for, coming)
        )

    def _give_up(self, candidate: Candidate, in_flight: InFlightCommand, error: str) -> None:
        """Keep a node; the next round removes its marks."""
        self._keep([candidate], in_flight)
        in_flight.why = error
        if self._changes.has_changed(candidate.name, error):
            fields = _failure_fields(candidate.name, candidate.claim, error)
            log.warning("cannot disrupt node; keeping it and trying again later", extra=fields)

    def _keep(self, candidates: Sequence[Candidate], in_flight: InFlightCommand) -> None:
        in_flight.failed = True
        for candidate in candidates:
            metadata = candidate.claim.metadata
            self.cluster.unmark(metadata.name)
            self._backed_off[metadata.uid] = candidate.name, self.clock()

    async def _unmark(self, state: StateNode) -> None:
        assert state.node is not None
        assert state.claim is not None
        after = conditions.without_condition(state.claim.status.conditions, DISRUPTION_REASON)
        try:
            if _is_tainted(state):
                taints = [t for t in state.node.spec.taints if t.key != DISRUPTED.key]
                untainted = {"spec": {"taints": to_wire(taints) or None}}
                await apply_patch(self.ports, state.node, untainted)
            await with_conditions(self.ports, state.claim, after)
        except ApiError as error:
            fields = _failure_fields(state.name, state.claim, error)
            log.info(
                "cannot remove taint karpenter.sh/disrupted or condition DisruptionReason of a "
                "node that is kept; retrying",
                extra=fields,
            )


def log_fields(command: Command) -> dict[str, object]:
    """Return the log fields of a command."""
    return {
        "reason": command.reason.label,
        "decision": command.decision,
        "nodes": sorted(command.names),
        "replacements": len(command.replacements),
        "saving": round(command.saving, 4),
        "plan-saving": round(command.whole.saving, 4),
        "evictions": command.evictions,
    }


def _failure_fields(node: str, claim: NodeClaim, error: object) -> dict[str, str]:
    return {"Node": node, "NodeClaim": claim.metadata.name, "error": str(error)}


def _is_marked(state: StateNode) -> bool:
    return state.claim is not None and (
        _is_tainted(state)
        or conditions.find(state.claim.status.conditions, DISRUPTION_REASON) is not None
    )


def _is_rebooted(state: StateNode) -> bool:
    return state.claim is not None and conditions.is_true(state.claim.status.conditions, REBOOTING)


def _is_tainted(state: StateNode) -> bool:
    return state.node is not None and any(t.key == DISRUPTED.key for t in state.node.spec.taints)
