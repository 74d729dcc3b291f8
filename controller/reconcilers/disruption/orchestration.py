"""Carries commands out: marks nodes, deletes their claims, takes back what cannot be done.

A node on its way out is marked before its claim is deleted: by a taint, so that no pod comes,
and by a condition of its claim that says why. A mark counts only while its command is under
way here. Whoever bears one otherwise (its writing was cut off, its claim could not be deleted,
the controller that wrote it has died) loses it, and what loses it is looked for in every
round. So no mark outlives its reason, whichever write failed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import conditions
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import DISRUPTION_REASON
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
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import patched, with_condition, with_conditions
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

PATIENCE = timedelta(minutes=10)
"""How long a claim's deletion is tried when the API server does not say what became of it."""

REST = timedelta(minutes=1)
"""How long a node that could not be disrupted is left alone."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Underway:
    """A command being carried out: since when, and whose claims are still to be deleted.

    It has `failed` once a node of it had to be let stay.
    """

    command: Command
    since: datetime
    left: list[Candidate]
    failed: bool = False


@dataclass(slots=True)
class Orchestrator:
    """Takes each command step by step to its end; every step is safe to repeat."""

    api: ApiServer
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    _underway: list[Underway] = field(default_factory=list)
    _resting: dict[str, datetime] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether a command is under way."""
        return bool(self._underway)

    def rests(self, candidate: Candidate) -> bool:
        """Whether a node could not be disrupted a moment ago, for a reason that may last."""
        return candidate.claim.metadata.uid in self._resting

    async def begin(self, command: Command) -> bool:
        """Mark a command's nodes and delete their claims; returns whether any could be marked."""
        log.info(
            "disrupting nodes",
            extra={"reason": command.reason.label, "nodes": [c.name for c in command.candidates]},
        )
        underway = Underway(command, self.clock(), list(command.candidates))
        could = await asyncio.gather(*(self._mark(c, underway) for c in command.candidates))
        marked = [one for one, done in zip(command.candidates, could, strict=True) if done]
        underway.left = marked
        self._underway.append(underway)
        if marked:
            underway.command = replace(command, candidates=tuple(marked))
            self.metrics.decided(underway.command)
            self.cluster.mark_for_deletion(*(one.claim.metadata.name for one in marked))
        await self.advance()
        return bool(marked)

    async def advance(self) -> None:
        """Take every command that is under way as far as it can go now."""
        now = self.clock()
        self._resting = {uid: until for uid, until in self._resting.items() if until > now}
        for one in self._underway:
            ended = await asyncio.gather(*(self._delete(c, one) for c in one.left))
            one.left = [c for c, done in zip(one.left, ended, strict=True) if not done]
        for one in self._underway:
            if one.failed and not one.left:
                self.metrics.failed(one.command)
        self._underway = [one for one in self._underway if one.left]

    async def mend(self) -> None:
        """Take the marks off nodes that nobody is disrupting."""
        for state in self.cluster.state_nodes(self.clock()):
            if state.node is not None and not state.deleting and _is_marked(state):
                await self._unmark(state)

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
            told = {"Node": candidate.name, "error": str(error)}
            log.info("node changed before its disruption", extra=told)
            return False
        except ApiError as error:
            self._give_up(candidate, underway, error)
            return False
        return True

    async def _delete(self, candidate: Candidate, underway: Underway) -> bool:
        """Delete a claim; returns whether that has been settled, one way or the other."""
        if not self._is_going(candidate):
            try:
                await self._ask(candidate)
            except (UnavailableError, TooManyRequestsError) as error:
                # It may have been heard, or be heard yet: only time tells.
                if self.clock() < underway.since + PATIENCE:
                    return False
                self._give_up(candidate, underway, error)
                return True
            except ApiError as error:
                self._give_up(candidate, underway, error)
                return True
        reason = underway.command.reason
        policy = candidate.node_pool.spec.disruption.consolidation_policy
        self.metrics.disrupted(candidate.claim, reason.label, policy=policy)
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
        known = self.cluster.get(NODE_CLAIM, candidate.claim.metadata.name)
        return (
            known is None
            or known.metadata.uid != candidate.claim.metadata.uid
            or known.metadata.is_deleting
        )

    def _give_up(self, candidate: Candidate, underway: Underway, error: ApiError) -> None:
        """Let a node stay; its marks are taken off when they are next looked for."""
        underway.failed = True
        metadata = candidate.claim.metadata
        self.cluster.unmark(metadata.name)
        self._resting[metadata.uid] = self.clock() + REST
        told = {"Node": candidate.name, "NodeClaim": metadata.name, "error": str(error)}
        log.warning("cannot disrupt node", extra=told)

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
            told = {"Node": state.name, "error": str(error)}
            log.info("cannot take the mark off a node yet", extra=told)


def _is_marked(state: StateNode) -> bool:
    return state.claim is not None and (
        _is_tainted(state)
        or conditions.find(state.claim.status.conditions, DISRUPTION_REASON) is not None
    )


def _is_tainted(state: StateNode) -> bool:
    return state.node is not None and any(t.key == DISRUPTED.key for t in state.node.spec.taints)
