"""Records each command as a Disruption object, with its predicted and its real saving.

The history is kept in the cluster, so it survives restarts and users can read it. It never blocks
a command: if a Disruption cannot be written, the controller logs that and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.annotations import approval as approval_of
from controller.apis.karpenter.disruption import (
    Balance,
    Disruption,
    DisruptionSpec,
    DisruptionStatus,
)
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import DISRUPTION, NODE_CLAIM, NODE_POOL, POD
from controller.apis.kubernetes.meta import ObjectMeta, to_wire
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
)
from controller.disruption.commands import Command
from controller.disruption.modes import Mode
from controller.disruption.records import history
from controller.disruption.records.history import DAY, HOUR, ObservedCluster, with_status
from controller.disruption.records.proposals import spec_of
from controller.reconcilers.newnodes.supply import supply
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete, new_name

PERIOD = timedelta(seconds=30)

NOT_SERVED = timedelta(minutes=10)
"""How long to wait before reading again if the cluster does not serve the kind Disruption."""

MOST_KEPT = 200
"""How many ended Disruptions are kept, a few MiB at most."""

KEPT_FOR = timedelta(days=7)
WITHDRAWN_KEPT_FOR = timedelta(hours=1)
DECLINED_FOR = DAY
"""How long nodes are not disrupted after a user declined their disruption."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class History(PortUser):
    """The history of commands, and the only writer of Disruption objects."""

    ports: Ports
    _records: dict[str, Disruption] = field(default_factory=dict)
    _balance: Balance = field(default_factory=Balance)
    _is_read: bool = False
    _unfinished: list[Disruption] = field(default_factory=list)
    _silent_until: datetime | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _uncreated: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Disruptions whose create request got no response, as JSON, by name."""

    _unwritten: set[str] = field(default_factory=set)
    """Names of records whose status could not be written."""

    async def run_once(self) -> timedelta:
        """Record the savings of ended commands; returns when to measure again."""
        if not self.cluster.synced or not await self._ensure_read():
            return PERIOD
        for name in sorted(self._unwritten & self._records.keys()):
            await self._write(self._records[name])
        done = [record for record in self._records.values() if record.status.state == "Done"]
        due = [record for record in done if self._is_due(record)]
        if due:
            observed = await self._observe()
            for record in due:
                await self._measure(record, observed)
        await self._forget()
        return PERIOD

    # Changes of state.

    async def propose(self, spec: DisruptionSpec) -> str:
        """Create a proposal that waits for approval; returns its name, empty if not created."""
        if not await self._ensure_read():
            return ""
        return await self._create(spec, DisruptionStatus())

    async def renew(self, record: str, spec: DisruptionSpec) -> None:
        """Write the current spec of a proposal; `record` is its name."""
        try:
            written = await self.api.patch(DISRUPTION, record, {"spec": to_wire(spec)})
        except ApiError as error:
            self._log_failure(error)
        else:
            self._records[record] = written

    async def record_start(
        self, command: Command, replacements: Sequence[NodeClaim], record: str = ""
    ) -> str:
        """Record the start of a command; returns the Disruption's name, empty if not created.

        `record` is the name of the command's proposal, if there is one.
        """
        if not await self._ensure_read():
            return ""
        status = DisruptionStatus(
            state="Underway",
            replacements=[replacement.metadata.name for replacement in replacements],
            begun_at=self.clock(),
        )
        known = self._records.get(record)
        if known is None:
            return await self._create(spec_of(command, Mode.ACT), status)
        await self.renew(record, spec_of(command, Mode(known.spec.mode)))
        known = self._records.get(record, known)
        await self._update(known, with_status(known, **_fields(status)))
        return record

    async def record_end(self, record: str, *, failed: bool, why: str = "") -> None:
        """Record that a command ended.

        `record` is the name of its Disruption; without such a Disruption, the call has no effect.
        `failed` is True if some of its nodes were not disrupted; `why` is the reason.
        """
        known = self._records.get(record)
        if known is None:
            return
        after = with_status(
            known, state="Failed" if failed else "Done", message=why, ended_at=self.clock()
        )
        if not failed and known.status.replacements:
            observed = await self._observe()
            after = with_status(
                after, replacements_cost=round(history.replacements_cost(after, observed), 4)
            )
        await self._update(known, after)

    async def withdraw(self, record: str, why: str) -> None:
        """Record that the proposal named `record` is no longer valid, and why."""
        await self._close(record, state="Withdrawn", message=why)

    async def decline(self, record: str) -> None:
        """Record that a user declined the proposal named `record`."""
        until = self.clock() + DECLINED_FOR
        message = f"declined; its nodes are not disrupted before {until:%Y-%m-%dT%H:%M:%SZ}"
        await self._close(record, state="Declined", message=message)

    async def _close(self, record: str, **status: object) -> None:
        known = self._records.get(record)
        if known is not None:
            await self._update(known, with_status(known, ended_at=self.clock(), **status))

    # Approvals.

    async def proposals(self) -> list[Disruption] | None:
        """Return the proposals that wait for approval, as the API server has them now.

        Returns None if they cannot be read.
        """
        if not await self._ensure_read():
            return None
        waiting = [name for name, record in self._records.items() if _waits(record)]
        if not waiting:
            return []
        try:
            there = {record.metadata.name: record for record in await self.api.list(DISRUPTION)}
        except ApiError as error:
            self._log_failure(error)
            return None
        for name in waiting:
            if name in there:
                self._records[name] = there[name]
            else:
                self._records.pop(name, None)
        return [self._records[name] for name in waiting if name in self._records]

    @property
    def declined(self) -> frozenset[str]:
        """The names of nodes whose disruption a user declined within `DECLINED_FOR`."""
        since = self.clock() - DECLINED_FOR
        return frozenset(
            name
            for record in self._records.values()
            if record.status.state == "Declined" and (record.status.ended_at or since) > since
            for name in record.spec.nodes
        )

    # Storage.

    async def _ensure_read(self) -> bool:
        """Read the history if it was not read before; returns whether it has been read."""
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
                self._log_failure(error)
                return False
            self._records = {record.metadata.name: record for record in records}
            balances = [
                record.status.balance for record in records if record.status.balance is not None
            ]
            self._balance = max(balances, key=lambda balance: balance.sequence, default=Balance())
            self._is_read = True
            self._unfinished = [record for record in records if _is_unfinished(record)]
            self.metrics.history(self._balance)
        return True

    async def unfinished_commands(self) -> list[Disruption] | None:
        """Return the commands that an earlier leader began and did not end; later calls return [].

        Returns None if they cannot be read now, and an empty list if the API server does not serve
        Disruptions or refuses access to them.
        """
        if not await self._ensure_read():
            return None if self._silent_until is None else []
        left, self._unfinished = self._unfinished, []
        return left

    async def abandon(self, record: Disruption) -> None:
        """Record the end of an earlier leader's command: failed if one of its NodeClaims stays."""
        claims = [self.cluster.get(NODE_CLAIM, name) for name in record.spec.node_claims]
        stay = [claim for claim in claims if claim is not None and not claim.metadata.is_deleting]
        why = "the controller replica that began it stopped" if stay else ""
        await self.record_end(record.metadata.name, failed=bool(stay), why=why)

    async def _create(self, spec: DisruptionSpec, status: DisruptionStatus) -> str:
        name = new_name(f"{spec.reason.lower()}-")
        record = Disruption(metadata=ObjectMeta(name=name), spec=spec)
        body = {"metadata": {"name": name}, "spec": to_wire(spec)}
        try:
            record = await self.api.create(DISRUPTION, body)
        except UnavailableError as error:
            self._log_failure(error)
            self._uncreated[name] = (
                body  # it may exist: the next write of its status repeats the create request
            )
        except ApiError as error:
            self._log_failure(error)
            return ""
        fields = _fields(status)
        if status.state == "Proposed":
            command = f"kubectl annotate disruption {name} {labels.APPROVED}=true"
            fields["message"] = f"to approve: {command}; false declines it for a day"
        await self._update(record, with_status(record, **fields))
        return name

    async def _update(self, before: Disruption, after: Disruption) -> None:
        """Write a Disruption's status, and update the balance if the status changes it."""
        carried = history.updated_balance(self._balance, before=before.status, after=after)
        if carried is not None:
            self._balance = carried
            self.metrics.history(carried)
            after = with_status(after, balance=carried)
        self._records[after.metadata.name] = after
        await self._write(after)

    async def _write(self, record: Disruption) -> None:
        """Write a Disruption's status; a failed write is repeated in every round.

        If the create request got no response, it is repeated first.
        """
        name, status = record.metadata.name, record.status
        stated = {"state": status.state, "message": status.message}
        patch = {"status": {**stated, **to_wire(status)}}
        self._unwritten.add(name)
        try:
            if name in self._uncreated:
                with contextlib.suppress(ConflictError):  # the earlier request succeeded
                    await self.api.create(DISRUPTION, self._uncreated[name])
                del self._uncreated[name]
            written = await self.api.patch(DISRUPTION, name, patch, subresource="status")
        except NotFoundError:
            self._records.pop(name, None)  # it was deleted
        except ApiError as error:
            self._log_failure(error)
            return
        else:
            if self._records.get(name) is record:  # it did not change meanwhile
                self._records[name] = written
        self._unwritten.discard(name)

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

    async def _measure(self, record: Disruption, observed: ObservedCluster) -> None:
        assert record.status.ended_at is not None
        after, age = record, observed.now - record.status.ended_at
        if record.status.pods is None:
            pods = history.pods_outcome(record, observed.pods)
            if pods.running >= pods.moved or age >= HOUR:
                after = with_status(after, pods=pods)
        if record.status.after_hour is None and age >= HOUR:
            after = with_status(after, after_hour=history.outcome(record, observed))
        if record.status.after_day is None and age >= DAY:
            after = with_status(after, after_day=history.outcome(record, observed))
        if after is not record:
            await self._update(record, after)

    async def _observe(self) -> ObservedCluster:
        types = (await supply(self.cloud, self.cluster, self.cluster.list(NODE_POOL))).types
        now = self.clock()
        return ObservedCluster(
            nodes=self.cluster.state_nodes(now),
            pods=self.cluster.list(POD),
            types=types,
            planned=frozenset(
                name for record in self._records.values() for name in record.status.replacements
            ),
            now=now,
        )

    async def _forget(self) -> None:
        """Delete ended Disruptions that are too many or too old.

        It never deletes the one with the newest balance.
        """
        now = self.clock()
        ended = sorted(
            (record for record in self._records.values() if record.status.ended_at is not None),
            key=lambda record: record.status.ended_at or now,
        )
        ended = [record for record in ended if record.status.balance != self._balance]
        surplus = max(len(ended) - MOST_KEPT, 0)
        for index, record in enumerate(ended):
            if index < surplus or now - (record.status.ended_at or now) > _kept_for(record):
                await self._delete(record)

    async def _delete(self, record: Disruption) -> None:
        try:
            await delete(self.api, record)
        except ApiError as error:
            self._log_failure(error)
            return
        self._records.pop(record.metadata.name, None)

    def _log_failure(self, error: ApiError) -> None:
        if isinstance(error, NotFoundError):
            log.warning(
                "cannot record disruptions: the cluster does not have the kind Disruption; "
                "install its CRD, crds/joiner.dev_disruptions.yaml"
            )
        else:
            log.warning(
                "cannot read or write objects of the kind Disruption, so the history of "
                "disruptions may be incomplete: %s",
                error,
            )


def approval(record: Disruption) -> bool | None:
    """Return True if a user approved a proposal, False if a user declined it, otherwise None."""
    return approval_of(record.metadata.annotations.get(labels.APPROVED))


def _waits(record: Disruption) -> bool:
    return record.status.state == "Proposed" and record.spec.mode == Mode.RECOMMEND.value


def _is_unfinished(record: Disruption) -> bool:
    """Whether a command was in progress, or about to start."""
    not_started = record.status.state == "Proposed" and record.spec.mode == Mode.ACT.value
    return not_started or record.status.state == "Underway"


def _kept_for(record: Disruption) -> timedelta:
    if record.status.state == "Withdrawn":
        return WITHDRAWN_KEPT_FOR
    return DECLINED_FOR if record.status.state == "Declined" else KEPT_FOR


def _fields(status: DisruptionStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__struct_fields__}
