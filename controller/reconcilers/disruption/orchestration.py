"""Carries commands out: marks nodes, makes those in their place, deletes claims, takes back what
cannot be done.

A node on its way out is marked before its claim is deleted: by a taint, so that no pod comes,
and by a condition of its claim that says why. What comes in its place is made next, and only
when that is ready for pods does the claim go. A mark counts only while its command is under
way here: one that was begun here, or that an earlier leader has written down. Whoever bears one
otherwise (its writing was cut off, its claim could not be deleted, the controller that wrote it
has died) loses it, and what loses it is looked for in every round. So no mark outlives its
reason, whichever write failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import conditions, labels
from controller.apis.disruption import Disruption
from controller.apis.kinds import NODE, NODE_CLAIM, POD
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import DISRUPTION_REASON, INITIALIZED, REGISTERED, NodeClaim
from controller.apis.pods import Pod
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.port import ApiServer
from controller.disruption.commands import Candidate, Command
from controller.disruption.pods import DISRUPTED
from controller.disruption.problem import DisruptionProblem
from controller.disruption.proposals import rest_of
from controller.disruption.rollout import since
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.bookkeeping import Ledger
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.reconcilers.writing import patched, with_condition, with_conditions
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

RETRY = timedelta(seconds=1)
"""How soon to look again at a command that is under way."""

IDLE = timedelta(seconds=10)

PATIENCE = timedelta(minutes=10)
"""How long a claim's deletion is tried when the API server does not say what became of it."""

READINESS = timedelta(minutes=10), timedelta(hours=1)
READINESS_PER_NODE = timedelta(milliseconds=80)
"""How long new nodes may take to be ready for pods: so much for each node on its way out,
between the two."""

UNDISTURBED = timedelta(hours=1)
"""How long a node is kept at most for pods that are to move there and have not left yet."""

HANDOVER = timedelta(minutes=10)
"""How long a node that is ready is kept for those in whose place an earlier leader made it."""

REST = timedelta(minutes=1)
"""How long a node that could not be disrupted is left alone."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Underway:
    """A command being carried out: since when, and whose claims are still to be deleted.

    `heirs` are the claims made in their place. It has `failed` once a node of it had to be let
    stay, `why` says for what. `deleting_since` is when nothing stood in the way of the first
    deletion any more. `record` names what is written of it in the ledger.
    """

    command: Command
    since: datetime
    left: list[Candidate]
    heirs: tuple[NodeClaim, ...] = ()
    failed: bool = False
    why: str = ""
    deleting_since: datetime | None = None
    record: str = ""


@dataclass(slots=True, kw_only=True)
class Orchestrator:
    """Takes each command step by step to its end; every step is safe to repeat."""

    api: ApiServer
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    writer: ClaimWriter
    ledger: Ledger
    _underway: list[Underway] = field(default_factory=list)
    _resting: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run_once(self) -> timedelta:
        """Take what is under way a step further; returns when to look again."""
        await self.advance()
        return RETRY if self._underway else IDLE

    @property
    def resting(self) -> frozenset[str]:
        """The names of nodes that could not be disrupted a moment ago."""
        now = self.clock()
        self._resting = {
            uid: (name, since)
            for uid, (name, since) in self._resting.items()
            if since <= now < since + REST
        }
        return frozenset(name for name, _ in self._resting.values())

    @property
    def awaiting(self) -> Mapping[str, str]:
        """The names of nodes, and of what an earlier leader made in their place, which is still on
        its way: nothing else need be made for them meanwhile.
        """
        return {
            node: claim.metadata.name
            for claim, nodes in self._orphans()
            if not conditions.is_true(claim.status.conditions, INITIALIZED)
            for node in nodes
        }

    @property
    def kept(self) -> Mapping[str, str]:
        """The names of nodes that an earlier leader made in the place of others, and why they stay
        for a while though nothing runs there yet: otherwise the same would be bought again.
        """
        standing = {node.metadata.name for node in self.cluster.list(NODE)}
        kept = {}
        for claim, nodes in self._orphans():
            left = standing.intersection(nodes)
            heir = self.cluster.node_of(claim)
            if left and heir is not None and self.clock() < since(claim, INITIALIZED) + HANDOVER:
                kept[heir.metadata.name] = f"It was made in the place of {min(left)}, which is here"
        return kept

    def _orphans(self) -> Iterator[tuple[NodeClaim, Sequence[str]]]:
        """Yield the claims that no command waits for any more, and in whose place they are."""
        own = {heir.metadata.uid for underway in self._underway for heir in underway.heirs}
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
        """Mark a command's nodes, make those in their place, and have the claims go when those
        are ready; returns whether it is under way. `problem` is what was asked when it was decided;
        `record` names the proposal that somebody has approved of.
        """
        known = self._as_known(command)
        if known is None:
            log.info("nodes changed before their disruption", extra=told(command))
            return False
        log.info("disrupting nodes", extra={**told(known), "why": known.why})
        underway = Underway(command=known, since=self.clock(), left=list(known.candidates))
        could = await asyncio.gather(*(self._mark(c, underway) for c in known.candidates))
        marked = [
            candidate for candidate, done in zip(known.candidates, could, strict=True) if done
        ]
        if known.replacements and len(marked) < len(known.candidates):
            return False  # the marks that were made are taken off in the next round
        if marked:
            underway.command = replace(known, candidates=tuple(marked))
            if not await self._make_heirs(underway, problem):
                await self._give_up_all(underway, "nothing could be made in their place")
                self.metrics.failed(underway.command)
                return False
            # No wait comes between the last claim and this: nobody may count both for staying.
            self.cluster.mark_for_deletion(*(candidate.claim.metadata.name for candidate in marked))
            self.metrics.decided(underway.command)
            for name, pods in self._expected(underway):
                self.writer.expect(name, pods, UNDISTURBED)
            await self._report_launching(underway)
            underway.record = await self.ledger.begun(underway.command, underway.heirs, record)
        underway.left = marked
        self._underway.append(underway)
        await self.advance()
        return bool(marked)

    async def resume(self, problem: DisruptionProblem) -> bool:
        """Go on with what an earlier leader had begun: what it made in the place of nodes must not
        be made again. Returns whether that is known.
        """
        records = await self.ledger.left_behind()
        for record in records or ():
            underway = self._taken_over(record, problem)
            if underway is None:
                await self.ledger.abandon(record)
                continue
            command = underway.command
            log.info("going on with the disruption of nodes", extra=told(command))
            self.cluster.mark_for_deletion(*(c.claim.metadata.name for c in command.candidates))
            for name, pods in self._expected(underway):
                self.writer.expect(name, pods, UNDISTURBED)
            self._underway.append(underway)
        return records is not None

    def _taken_over(self, record: Disruption, problem: DisruptionProblem) -> Underway | None:
        """Return a decision as what is left to be done; None when its heirs are not all there."""
        command = rest_of(record.spec, problem)
        made = [self.cluster.get(NODE_CLAIM, name) for name in record.status.replacements]
        heirs = [heir for heir in made if heir is not None and not heir.metadata.is_deleting]
        if command is None or len(heirs) < len(command.replacements):
            return None
        return Underway(
            command=command,
            since=record.status.begun_at or self.clock(),
            left=list(command.candidates),
            heirs=tuple(heirs),
            record=record.metadata.name,
        )

    async def advance(self) -> None:
        """Take every command that is under way as far as it can go now."""
        async with self._turn:  # two at once would count what they do twice
            for underway in tuple(self._underway):
                if await self._is_open(underway):
                    ended = await asyncio.gather(
                        *(self._delete(c, underway) for c in underway.left)
                    )
                    underway.left = [
                        c for c, done in zip(underway.left, ended, strict=True) if not done
                    ]
                if underway.failed and not underway.left:
                    self.metrics.failed(underway.command)
                if not underway.left:
                    await self.ledger.ended(
                        underway.record, failed=underway.failed, why=underway.why
                    )
            self._underway = [underway for underway in self._underway if underway.left]

    async def mend(self) -> None:
        """Take the marks off nodes that nobody is disrupting."""
        for state in self.cluster.state_nodes(self.clock()):
            if state.node is not None and not state.deleting and _is_marked(state):
                await self._unmark(state)

    # Nodes in the place of others.

    async def _make_heirs(self, underway: Underway, problem: DisruptionProblem) -> bool:
        """Write the claims of a command's new nodes; returns whether all could be written."""
        command, types = underway.command, problem.snapshot.instance_types
        if not all(self.writer.within_limits(command.replacements, types, replacing=True)):
            return False
        told = {labels.REPLACES: ",".join(sorted(command.names))}
        for node in command.replacements:
            heir = replace(node, annotations={**node.annotations, **told})
            pool, seen = problem.node_pools[node.node_pool], types.get(node.node_pool, ())
            try:
                claim = await self.writer.create(heir, pool, seen, reason=command.reason.label)
            except ApiError as error:
                log.warning("creating nodeclaim: %s", error, extra={"NodePool": node.node_pool})
                return False
            if claim is None:
                return False
            underway.heirs = (*underway.heirs, claim)
        return True

    async def _is_open(self, underway: Underway) -> bool:
        """Whether the claims may go: all that comes in their place is there. Ends the command
        when something of it has been lost, or does not come in time.
        """
        if underway.deleting_since is not None:
            return True
        now = self.clock()
        waiting: list[NodeClaim] = []
        for heir in underway.heirs:
            known = self._known(heir)
            if known is None or known.metadata.is_deleting:
                why = f"{heir.metadata.name}, made in their place, has gone"
                await self._give_up_all(underway, why)
                return False
            if not conditions.is_true(known.status.conditions, INITIALIZED):
                waiting.append(known)
        if not waiting:
            underway.deleting_since = now
            return True
        if now >= underway.since + self._readiness():
            names = ", ".join(claim.metadata.name for claim in waiting)
            await self._give_up_all(
                underway, f"{names}, made in their place, are not ready in time"
            )
            return False
        for claim in waiting:
            message = "Nodes wait for this one to be ready before they are disrupted"
            await self.recorder.publish(
                NODE_CLAIM, claim, "Normal", "DisruptionWaitingReadiness", message
            )
        return False

    def _readiness(self) -> timedelta:
        shortest, longest = READINESS
        queued = sum(len(underway.command.candidates) for underway in self._underway)
        return min(max(queued * READINESS_PER_NODE, shortest), longest)

    def _expected(self, underway: Underway) -> Iterator[tuple[str, list[Pod]]]:
        """Yield the machines, by node or by claim, with the pods that are to move there."""
        command = underway.command
        homes = [
            *command.moves.items(),
            *(
                (heir.metadata.name, node.pods)
                for heir, node in zip(underway.heirs, command.replacements, strict=False)
            ),
        ]
        for name, keys in homes:
            pods = (self._pod(key) for key in keys)
            yield name, [pod for pod in pods if pod is not None]

    def _pod(self, key: str) -> Pod | None:
        namespace, _, name = key.rpartition("/")
        return self.cluster.get(POD, name, namespace)

    async def _report_launching(self, underway: Underway) -> None:
        names = ", ".join(sorted(underway.command.names)[:3])
        message = f"Launching in place of {names}: {underway.command.reason.value}"
        for heir in underway.heirs:
            await self.recorder.publish(NODE_CLAIM, heir, "Normal", "DisruptionLaunching", message)

    # Nodes on their way out.

    def _as_known(self, command: Command) -> Command | None:
        """Return the command with its nodes and claims as they are now; None when one of them is
        another, or on its way out.
        """
        taken = {
            c.claim.metadata.uid for underway in self._underway for c in underway.command.candidates
        }
        known = []
        for candidate in command.candidates:
            node, claim = self.cluster.get(NODE, candidate.name), self._known(candidate.claim)
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

    async def _mark(self, candidate: Candidate, underway: Underway) -> bool:
        node, reason = candidate.node, underway.command.reason
        taints = [*(t for t in node.spec.taints if t.key != DISRUPTED.key), DISRUPTED]
        tainted = {"spec": {"taints": to_wire(taints)}}
        try:
            await patched(self.api, self.cluster, NODE, node, tainted)
            await with_condition(
                self.api, self.cluster, candidate.claim, DISRUPTION_REASON, "True",
                reason=reason.value, message=reason.value, now=self.clock(),
            )  # fmt: skip
        except (ConflictError, NotFoundError) as error:
            # It changed meanwhile: the next look decides anew.
            fields = {"Node": candidate.name, "error": str(error)}
            log.info("node changed before its disruption", extra=fields)
            return False
        except ApiError as error:
            self._give_up(candidate, underway, str(error))
            return False
        return True

    async def _delete(self, candidate: Candidate, underway: Underway) -> bool:
        """Delete a claim; returns whether that has been settled, one way or the other."""
        if not self._is_going(candidate):
            try:
                await self._ask(candidate)
            except (UnavailableError, TooManyRequestsError) as error:
                # It may have been heard, or be heard yet: only time tells.
                if self.clock() < (underway.deleting_since or underway.since) + PATIENCE:
                    return False
                self._give_up(candidate, underway, str(error))
                return True
            except ApiError as error:
                self._give_up(candidate, underway, str(error))
                return True
        reason = underway.command.reason
        chosen = candidate.node_pool.spec.disruption.consolidation_policy
        policy = chosen if underway.command.consolidation_type else ""
        moving = len(candidate.moving)
        self.metrics.disrupted(candidate.claim, reason.label, pods=moving, policy=policy)
        message = f"Disrupting Node: {reason.value}"
        terminating: tuple[EventType, str, str] = ("Normal", "DisruptionTerminating", message)
        await self.recorder.publish(NODE, candidate.node, *terminating)
        await self.recorder.publish(NODE_CLAIM, candidate.claim, *terminating)
        return True

    async def _ask(self, candidate: Candidate) -> None:
        metadata = candidate.claim.metadata
        try:
            await self.api.delete(NODE_CLAIM, metadata.name, uid=metadata.uid)
        except NotFoundError:
            return

    def _is_going(self, candidate: Candidate) -> bool:
        """Whether the claim has gone or is being deleted, by whomever."""
        known = self._known(candidate.claim)
        return known is None or known.metadata.is_deleting

    def _known(self, claim: NodeClaim) -> NodeClaim | None:
        """Return the claim as it is now; None when it has gone."""
        known = self.cluster.get(NODE_CLAIM, claim.metadata.name)
        return known if known is not None and known.metadata.uid == claim.metadata.uid else None

    # What cannot be done.

    async def _give_up_all(self, underway: Underway, why: str) -> None:
        """Let all nodes of a command stay; what was made in their place goes, unless it has joined
        or found another use.
        """
        for name, pods in self._expected(underway):
            self.cluster.withdraw(name, pods)
        for heir in underway.heirs:
            await self._dismiss(heir)
        self._let_stay(underway.command.candidates, underway)
        underway.left, underway.why = [], why
        log.warning("cannot disrupt nodes: %s", why, extra=told(underway.command))

    async def _dismiss(self, heir: NodeClaim) -> None:
        """Delete what is of no use. A machine that has joined may be ready in a moment, and shows
        meanwhile why it is not: it is kept, as by Karpenter, and waited for.
        """
        known = self._known(heir)
        if known is None or known.metadata.is_deleting or self._is_needed(known):
            return
        try:
            await self.api.delete(NODE_CLAIM, known.metadata.name, uid=known.metadata.uid)
        except ApiError as error:
            # It goes with other empty nodes.
            fields = {"NodeClaim": known.metadata.name, "error": str(error)}
            log.info("cannot delete what was made in the place of nodes", extra=fields)

    def _is_needed(self, claim: NodeClaim) -> bool:
        """Whether a claim's machine has joined, or pods run there or are on their way."""
        if conditions.is_true(claim.status.conditions, REGISTERED):
            return True
        node = self.cluster.node_of(claim)
        name = node.metadata.name if node is not None else claim.metadata.name
        coming = (claim.metadata.name, name)
        return any(map(is_reschedulable, self.cluster.pods_on(name))) or any(
            map(self.cluster.nominated_for, coming)
        )

    def _give_up(self, candidate: Candidate, underway: Underway, error: str) -> None:
        """Let a node stay; its marks are taken off when they are next looked for."""
        self._let_stay([candidate], underway)
        underway.why = error
        claim = candidate.claim.metadata.name
        fields = {"Node": candidate.name, "NodeClaim": claim, "error": error}
        log.warning("cannot disrupt node", extra=fields)

    def _let_stay(self, candidates: Sequence[Candidate], underway: Underway) -> None:
        underway.failed = True
        for candidate in candidates:
            metadata = candidate.claim.metadata
            self.cluster.unmark(metadata.name)
            self._resting[metadata.uid] = candidate.name, self.clock()

    async def _unmark(self, state: StateNode) -> None:
        assert state.node is not None
        assert state.claim is not None
        after = conditions.without_condition(state.claim.status.conditions, DISRUPTION_REASON)
        try:
            if _is_tainted(state):
                taints = [t for t in state.node.spec.taints if t.key != DISRUPTED.key]
                untainted = {"spec": {"taints": to_wire(taints) or None}}
                await patched(self.api, self.cluster, NODE, state.node, untainted)
            await with_conditions(self.api, self.cluster, state.claim, after)
        except ApiError as error:
            fields = {"Node": state.name, "error": str(error)}
            log.info("cannot take the mark off a node yet", extra=fields)


def told(command: Command) -> dict[str, object]:
    """Return what is logged of a command."""
    return {
        "reason": command.reason.label,
        "decision": command.decision,
        "nodes": sorted(command.names),
        "replacements": len(command.replacements),
        "saving": round(command.saving, 4),
        "plan-saving": round(command.whole.saving, 4),
        "evictions": command.evictions,
    }


def _is_marked(state: StateNode) -> bool:
    return state.claim is not None and (
        _is_tainted(state)
        or conditions.find(state.claim.status.conditions, DISRUPTION_REASON) is not None
    )


def _is_tainted(state: StateNode) -> bool:
    return state.node is not None and any(t.key == DISRUPTED.key for t in state.node.spec.taints)
