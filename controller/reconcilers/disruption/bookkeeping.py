"""Keeps the book of decisions: a Disruption for each, what it was to bring and what it brought.

The book lies in the cluster, so that it survives whoever writes it, and people can read it. It
never stands in the way of a decision: what cannot be written is told, and gone without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controller.apis import labels
from controller.apis.disruption import Balance, Disruption, DisruptionSpec, DisruptionStatus
from controller.apis.kinds import DISRUPTION, NODE_CLAIM, NODE_POOL, POD
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import NodeClaim
from controller.apiserver.errors import ApiError, ForbiddenError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.disruption import ledger
from controller.disruption.commands import Command
from controller.disruption.ledger import DAY, HOUR, Scene, with_status
from controller.disruption.modes import Mode
from controller.disruption.proposals import spec_of
from controller.reconcilers.clock import Clock
from controller.reconcilers.newnodes.supply import supply
from controller.state.cluster import Cluster
from controller.telemetry.metrics import Metrics

PERIOD = timedelta(seconds=30)

NOT_SERVED = timedelta(minutes=10)
"""How long a cluster that does not know the kind is not asked again."""

MOST_KEPT = 200
"""How many decisions that have ended are kept: a few MiB at most."""

KEPT_FOR = timedelta(days=7)
WITHDRAWN_KEPT_FOR = timedelta(hours=1)
DECLINED_FOR = DAY
"""How long nodes are left alone that somebody wants to keep."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The book; the only one who writes Disruptions."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    metrics: Metrics
    clock: Clock
    _records: dict[str, Disruption] = field(default_factory=dict)
    _balance: Balance = field(default_factory=Balance)
    _is_read: bool = False
    _left_behind: list[Disruption] = field(default_factory=list)
    _silent_until: datetime | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run_once(self) -> timedelta:
        """Write down what decisions have brought by now; returns when to look again."""
        if not self.cluster.synced or not await self._opened():
            return PERIOD
        done = [record for record in self._records.values() if record.status.state == "Done"]
        due = [record for record in done if self._is_due(record)]
        if due:
            scene = await self._scene()
            for record in due:
                await self._measure(record, scene)
        await self._forget()
        return PERIOD

    # What those who decide say.

    async def propose(self, spec: DisruptionSpec) -> str:
        """Write a decision that waits for somebody's word; returns its name, empty without one."""
        if not await self._opened():
            return ""
        return await self._created(spec, DisruptionStatus())

    async def renew(self, record: str, spec: DisruptionSpec) -> None:
        """Write of a decision what it comes to by now."""
        try:
            written = await self.api.patch(DISRUPTION, record, {"spec": to_wire(spec)})
        except ApiError as error:
            self._tell(error)
        else:
            self._records[record] = written

    async def begun(self, command: Command, heirs: Sequence[NodeClaim], record: str = "") -> str:
        """Write that a decision is being carried out; returns its name, empty without one.

        `record` is the name of its proposal, if it had one.
        """
        if not await self._opened():
            return ""
        status = DisruptionStatus(
            state="Underway",
            replacements=[heir.metadata.name for heir in heirs],
            begun_at=self.clock(),
        )
        known = self._records.get(record)
        if known is None:
            return await self._created(spec_of(command, Mode.ACT), status)
        await self.renew(record, spec_of(command, Mode(known.spec.mode)))
        known = self._records.get(record, known)
        await self._changed(known, with_status(known, **_fields(status)))
        return record

    async def ended(self, record: str, *, failed: bool, why: str = "") -> None:
        """Write that nothing of a decision is left to do, and whether some node had to stay."""
        known = self._records.get(record)
        if known is None:
            return
        after = with_status(
            known, state="Failed" if failed else "Done", message=why, ended_at=self.clock()
        )
        if not failed and known.status.replacements:
            scene = await self._scene()
            after = with_status(
                after, replacements_cost=round(ledger.replacements_cost(after, scene), 4)
            )
        await self._changed(known, after)

    async def withdraw(self, record: str, why: str) -> None:
        """Write that a proposal does not stand any more."""
        await self._close(record, state="Withdrawn", message=why)

    async def decline(self, record: str) -> None:
        """Write that somebody wants the nodes of a proposal to stay."""
        until = self.clock() + DECLINED_FOR
        message = f"its nodes are left alone until {until:%Y-%m-%dT%H:%M:%SZ}"
        await self._close(record, state="Declined", message=message)

    async def _close(self, record: str, **status: object) -> None:
        known = self._records.get(record)
        if known is not None:
            await self._changed(known, with_status(known, ended_at=self.clock(), **status))

    # What people say.

    async def proposals(self) -> list[Disruption] | None:
        """Return the decisions that wait for somebody's word, as they are in the cluster now; None
        where that cannot be told.
        """
        if not await self._opened():
            return None
        waiting = [name for name, record in self._records.items() if _waits(record)]
        if not waiting:
            return []
        try:
            there = {record.metadata.name: record for record in await self.api.list(DISRUPTION)}
        except ApiError as error:
            self._tell(error)
            return None
        for name in waiting:
            if name in there:
                self._records[name] = there[name]
            else:
                self._records.pop(name, None)
        return [self._records[name] for name in waiting if name in self._records]

    @property
    def declined(self) -> frozenset[str]:
        """The names of nodes that somebody wants to keep."""
        since = self.clock() - DECLINED_FOR
        return frozenset(
            name
            for record in self._records.values()
            if record.status.state == "Declined" and (record.status.ended_at or since) > since
            for name in record.spec.nodes
        )

    # How it is kept.

    async def _opened(self) -> bool:
        """Whether the book could be read once."""
        async with self._reading:
            if self._is_read:
                return True
            if self._silent_until is not None and self.clock() < self._silent_until:
                return False
            try:
                records = await self.api.list(DISRUPTION)
            except ApiError as error:
                if isinstance(error, NotFoundError | ForbiddenError):
                    self._silent_until = self.clock() + NOT_SERVED
                self._tell(error)
                return False
            self._records = {record.metadata.name: record for record in records}
            balances = [
                record.status.balance for record in records if record.status.balance is not None
            ]
            self._balance = max(balances, key=lambda balance: balance.sequence, default=Balance())
            self._is_read = True
            self._left_behind = [record for record in records if _is_left_behind(record)]
            self.metrics.ledger(self._balance)
        return True

    async def left_behind(self) -> list[Disruption] | None:
        """Return, once, the decisions that an earlier leader had begun and not ended; None while
        that cannot be told.
        """
        if not await self._opened():
            return None if self._silent_until is None else []
        left, self._left_behind = self._left_behind, []
        return left

    async def abandon(self, record: Disruption) -> None:
        """End a decision that an earlier leader had begun, by what became of its claims."""
        claims = [self.cluster.get(NODE_CLAIM, name) for name in record.spec.node_claims]
        stay = [claim for claim in claims if claim is not None and not claim.metadata.is_deleting]
        why = "the controller that had begun it has gone" if stay else ""
        await self.ended(record.metadata.name, failed=bool(stay), why=why)

    async def _created(self, spec: DisruptionSpec, status: DisruptionStatus) -> str:
        body: dict[str, Any] = {
            "metadata": {"generateName": f"{spec.reason.lower()}-"},
            "spec": to_wire(spec),
        }
        try:
            made = await self.api.create(DISRUPTION, body)
        except ApiError as error:
            self._tell(error)
            return ""
        await self._changed(made, with_status(made, **_fields(status)))
        return made.metadata.name

    async def _changed(self, before: Disruption, after: Disruption) -> None:
        """Write a record's status, and carry the balance on where that changes it."""
        carried = ledger.carried(self._balance, before=before.status, after=after)
        if carried is not None:
            self._balance = carried
            self.metrics.ledger(carried)
            after = with_status(after, balance=carried)
        name = after.metadata.name
        self._records[name] = after
        status = {"status": {"state": after.status.state, **to_wire(after.status)}}
        try:
            written = await self.api.patch(DISRUPTION, name, status, subresource="status")
        except NotFoundError:
            self._records.pop(name, None)  # somebody has deleted it
        except ApiError as error:
            self._tell(error)
        else:
            self._records[name] = written

    def _is_due(self, record: Disruption) -> bool:
        status, now = record.status, self.clock()
        if status.ended_at is None:
            return False
        age = now - status.ended_at
        return (
            (status.pods is None and bool(record.spec.workloads))
            or (status.after_hour is None and age >= HOUR)
            or (status.after_day is None and age >= DAY)
        )

    async def _measure(self, record: Disruption, scene: Scene) -> None:
        assert record.status.ended_at is not None
        after, age = record, scene.now - record.status.ended_at
        if record.status.pods is None:
            pods = ledger.pods_outcome(record, scene.pods)
            if pods.running >= pods.moved or age >= HOUR:
                after = with_status(after, pods=pods)
        if record.status.after_hour is None and age >= HOUR:
            after = with_status(after, after_hour=ledger.outcome(record, scene))
        if record.status.after_day is None and age >= DAY:
            after = with_status(after, after_day=ledger.outcome(record, scene))
        if after is not record:
            await self._changed(record, after)

    async def _scene(self) -> Scene:
        types = (await supply(self.cloud, self.cluster, self.cluster.list(NODE_POOL))).types
        now = self.clock()
        return Scene(
            nodes=self.cluster.state_nodes(now),
            pods=self.cluster.list(POD),
            types=types,
            planned=frozenset(
                name for record in self._records.values() for name in record.status.replacements
            ),
            now=now,
        )

    async def _forget(self) -> None:
        """Delete the oldest records; never the one with the newest balance."""
        now = self.clock()
        ended = sorted(
            (record for record in self._records.values() if record.status.ended_at is not None),
            key=lambda record: record.status.ended_at or now,
        )
        ended = [record for record in ended if record.status.balance != self._balance]
        surplus = max(len(ended) - MOST_KEPT, 0)
        for place, record in enumerate(ended):
            if place < surplus or now - (record.status.ended_at or now) > _kept_for(record):
                await self._delete(record)

    async def _delete(self, record: Disruption) -> None:
        try:
            await self.api.delete(DISRUPTION, record.metadata.name, uid=record.metadata.uid)
        except NotFoundError:
            pass
        except ApiError as error:
            self._tell(error)
            return
        self._records.pop(record.metadata.name, None)

    def _tell(self, error: ApiError) -> None:
        if isinstance(error, NotFoundError):
            log.warning(
                "decisions cannot be written down: the cluster does not know the kind Disruption; "
                "install crds/joiner.dev_disruptions.yaml"
            )
        else:
            log.warning("cannot write a decision down: %s", error)


def approval(record: Disruption) -> bool | None:
    """Return what somebody says of a proposal; None while nobody has said anything."""
    said = record.metadata.annotations.get(labels.APPROVED, "").strip().lower()
    return {"true": True, "false": False}.get(said)


def _waits(record: Disruption) -> bool:
    return record.status.state == "Proposed" and record.spec.mode == Mode.RECOMMEND.value


def _is_left_behind(record: Disruption) -> bool:
    """Whether a decision was being carried out, or was about to be."""
    unbegun = record.status.state == "Proposed" and record.spec.mode == Mode.ACT.value
    return unbegun or record.status.state == "Underway"


def _kept_for(record: Disruption) -> timedelta:
    if record.status.state == "Withdrawn":
        return WITHDRAWN_KEPT_FOR
    return DECLINED_FOR if record.status.state == "Declined" else KEPT_FOR


def _fields(status: DisruptionStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__struct_fields__}
