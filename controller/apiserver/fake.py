"""An API server in memory that implements the port's protocol, for tests.

It stores JSON and decodes it for each response, as a real server does, so that tests cover the
encoding of objects. It implements resource versions, uids, generations, finalizers, deletion
timestamps, the separation of `status` from the rest, owner references, preconditions, watches and
PodDisruptionBudgets. It validates the types of fields, but no other rule of a schema.

The methods without `async` act as a kubelet, a user or a broken network: `seed`, `finish_pods`,
`refuse`, `break_watches`.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from controller.apis import kinds
from controller.apis.kinds import Kind, T
from controller.apis.kubernetes.meta import KubernetesObject, to_wire
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.port import Change, Patch

Body = dict[str, Any]
ObjectKey = tuple[str, str]
"""Namespace and name; the namespace of a cluster-scoped object is empty."""

DEFAULT_GRACE_SECONDS = 30


def wall_clock() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(slots=True)
class _Refusal:
    verb: str
    kind: Kind[Any] | None
    error: ApiError
    times: int


class FakeApiServer:
    """An API server in memory. Implements `ApiServer`; not thread-safe."""

    def __init__(self, clock: Callable[[], datetime] = wall_clock) -> None:
        self.clock = clock
        self.calls: list[tuple[str, str, str]] = []
        """All writes in order: verb (`create`, `patch`, `patch/status`, `delete`, `evict`), kind,
        and `namespace/name` or `name`."""
        self._objects: dict[Kind[Any], dict[ObjectKey, Body]] = {}
        self._watchers: dict[Kind[Any], list[asyncio.Queue[tuple[str, Body]]]] = {}
        self._refusals: list[_Refusal] = []
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._suffixes = itertools.count(1)

    # Methods for tests.

    def seed(self, *values: KubernetesObject) -> None:
        """Store typed objects as they are, status included; objects of the same name are replaced.

        An empty uid, creation timestamp and generation are filled in. A terminating pod gets a
        grace period, because it would be removed at once without one.
        """
        for value in values:
            self.store_json(kinds.KIND_OF[type(value)], to_wire(value))

    def store_json(self, kind: Kind[Any], body: Body) -> None:
        """Store an object from its JSON, as `seed` does with typed objects."""
        key = _key(kind, body)
        before = self._store(kind).get(key)
        self._fill_identity(body, before)
        if kind == kinds.POD and "deletionTimestamp" in body["metadata"]:
            body["metadata"].setdefault("deletionGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        self._save(kind, key, body)

    def objects(self, kind: Kind[T], namespace: str = "") -> list[T]:
        """Return all objects of a kind, sorted by namespace and name."""
        stored = sorted(self._store(kind).items())
        return [_decode(kind, body) for (ns, _), body in stored if namespace in ("", ns)]

    def find(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return one object, or None."""
        body = self._store(kind).get((namespace, name))
        return None if body is None else _decode(kind, body)

    def bodies(self, kind: Kind[Any]) -> builtins.list[Body]:
        """Return the stored JSON of all objects of a kind; the caller must not change it.

        A write stores a new body and leaves the old one unchanged.
        """
        return [*self._store(kind).values()]

    def body(self, kind: Kind[Any], name: str, namespace: str = "") -> Body:
        """Return the stored JSON of one object; raises NotFoundError."""
        return self._body(kind, (namespace, name))

    @contextlib.contextmanager
    def listening(self, kind: Kind[Any]) -> Iterator[asyncio.Queue[tuple[str, Body]]]:
        """Provide a queue of the changes of a kind, each with its type and the object's JSON."""
        queue: asyncio.Queue[tuple[str, Body]] = asyncio.Queue()
        watchers = self._watchers.setdefault(kind, [])
        watchers.append(queue)
        try:
            yield queue
        finally:
            watchers.remove(queue)

    def finish_pods(self, *names: str) -> None:
        """End terminating pods as the kubelet would: those named `namespace/name`, or all."""
        for (namespace, name), body in list(self._store(kinds.POD).items()):
            wanted = not names or f"{namespace}/{name}" in names
            if wanted and "deletionTimestamp" in body["metadata"]:
                after = _copy(body)
                after["metadata"]["deletionGracePeriodSeconds"] = 0
                self._save(kinds.POD, (namespace, name), after)

    def refuse(
        self, verb: str, error: ApiError, *, kind: Kind[Any] | None = None, times: int = 1
    ) -> None:
        """Raise the error in the next `times` calls of a verb (`get`, `list`, `create`, …).

        Only calls for `kind` count; None means calls for any kind.
        """
        self._refusals.append(_Refusal(verb, kind, error, times))

    def break_watches(self) -> None:
        """End every watch with 410 Gone, so that it lists again."""
        for watchers in self._watchers.values():
            for queue in watchers:
                queue.put_nowait(("RESET", {}))

    # The port.

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return one object."""
        self._maybe_refuse("get", kind)
        return _decode(kind, self._body(kind, (namespace, name)))

    async def list(
        self, kind: Kind[T], *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Return all objects of a kind."""
        self._maybe_refuse("list", kind)
        return [
            _decode(kind, body)
            for _, body in sorted(self._store(kind).items())
            if all(term(_labels(body)) for term in _label_terms(label_selector))
            and all(term(body) for term in _field_terms(field_selector))
        ]

    async def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        """Yield RESET, the existing objects, SYNCED, and then every change; see `Change`.

        After `break_watches`, the sequence starts again.
        """
        with self.listening(kind) as queue:
            while True:
                for change in self._listing(kind, queue):
                    yield change
                while (event := await queue.get())[0] != "RESET":
                    yield Change(event[0], _decode(kind, event[1]))  # type: ignore[arg-type]

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Create an object; a status in the body is dropped, as by the real server."""
        self._maybe_refuse("create", kind)
        fresh = _copy(body)
        fresh.pop("status", None)
        metadata = fresh.setdefault("metadata", {})
        if kind.namespaced:
            metadata["namespace"] = namespace or metadata.get("namespace", "")
        if not metadata.get("name"):
            metadata["name"] = metadata.get("generateName", "") + f"{next(self._suffixes):05d}"
        for name in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(name, None)
        key = _key(kind, fresh)
        if key in self._store(kind):
            raise ConflictError(
                f"{kind.plural} {metadata['name']!r} already exists",
                status=409,
                reason="AlreadyExists",
            )
        self._fill_identity(fresh, None)
        self._record("create", kind, key)
        self._save(kind, key, fresh)
        return _decode(kind, fresh)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """Merge a patch into an object, or into its status alone."""
        self._maybe_refuse(f"patch/{subresource}" if subresource else "patch", kind)
        before = self._body(kind, (namespace, name))
        _expect(kind, before, resource_version=resource_version, uid=uid)
        after = _merge(before, patch)
        if subresource == "status":
            after = {**_copy(before), "status": after.get("status", {})}
        elif "status" in before:
            after["status"] = before["status"]
        else:
            after.pop("status", None)
        self._record(f"patch/{subresource}" if subresource else "patch", kind, (namespace, name))
        return _decode(kind, self._update(kind, before, after))

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Request an object's deletion; it is removed after its finalizers and grace period end."""
        self._maybe_refuse("delete", kind)
        key = (namespace, name)
        body = self._body(kind, key)
        _expect(kind, body, resource_version=resource_version, uid=uid)
        self._record("delete", kind, key)
        self._delete(kind, key, body, grace_period_seconds)

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict a pod and reduce `disruptionsAllowed` of its PodDisruptionBudget by one.

        Raises:
            NotFoundError: the pod does not exist.
            ConflictError: another pod has its name.
            TooManyRequestsError: its budget allows no disruption.
            UnavailableError: it has several budgets.

        """
        self._maybe_refuse("evict", kinds.POD)
        key = (namespace, name)
        body = self._body(kinds.POD, key)
        _expect(kinds.POD, body, uid=uid)
        self._record("evict", kinds.POD, key)
        if body.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            self._spend_budget(body)
        self._delete(kinds.POD, key, body, None)

    # Storage.

    def _store(self, kind: Kind[Any]) -> dict[ObjectKey, Body]:
        return self._objects.setdefault(kind, {})

    def _body(self, kind: Kind[Any], key: ObjectKey) -> Body:
        try:
            return self._store(kind)[key]
        except KeyError:
            raise NotFoundError(
                f"{kind.plural} {key[1]!r} not found", status=404, reason="NotFound"
            ) from None

    def _record(self, verb: str, kind: Kind[Any], key: ObjectKey) -> None:
        self.calls.append((verb, kind.name, "/".join(part for part in key if part)))

    def _maybe_refuse(self, verb: str, kind: Kind[Any]) -> None:
        for refusal in self._refusals:
            if refusal.verb == verb and refusal.kind in (None, kind):
                refusal.times -= 1
                if refusal.times <= 0:
                    self._refusals.remove(refusal)
                raise refusal.error

    def _listing(
        self, kind: Kind[T], queue: asyncio.Queue[tuple[str, Body]]
    ) -> Iterator[Change[T]]:
        while not queue.empty():
            queue.get_nowait()
        bodies = [body for _, body in sorted(self._store(kind).items())]
        yield Change("RESET")
        for body in bodies:
            yield Change("ADDED", _decode(kind, body))
        yield Change("SYNCED")

    def _fill_identity(self, body: Body, before: Body | None) -> None:
        metadata = body.setdefault("metadata", {})
        old = before["metadata"] if before else {}
        metadata.setdefault("uid", old.get("uid") or str(UUID(int=next(self._uids))))
        created = old.get("creationTimestamp") or _timestamp(self.clock())
        metadata.setdefault("creationTimestamp", created)
        metadata.setdefault("generation", old.get("generation", 1))

    def _update(self, kind: Kind[Any], before: Body, after: Body) -> Body:
        """Store a changed object; fields that only the server may write keep their values."""
        old, new = before["metadata"], after["metadata"]
        for name in (
            "uid", "name", "namespace", "creationTimestamp", "generation",
            "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion",
        ):  # fmt: skip
            new.pop(name, None)
            if name in old:
                new[name] = old[name]
        added = set(new.get("finalizers") or ()) - set(old.get("finalizers") or ())
        if added and "deletionTimestamp" in old:
            raise InvalidError(
                f"no new finalizers can be added if the object is being deleted: {sorted(added)}",
                status=422,
                reason="Invalid",
            )
        if after == before:
            return before
        if _desired_state(after) != _desired_state(before):
            new["generation"] = old.get("generation", 0) + 1
        self._save(kind, _key(kind, after), after)
        return after

    def _save(self, kind: Kind[Any], key: ObjectKey, body: Body) -> None:
        """Store an object under a new resource version, or remove it if its deletion is done."""
        _check(kind, body)
        metadata = body["metadata"]
        metadata["resourceVersion"] = str(next(self._versions))
        is_new = key not in self._store(kind)
        has_ended = (
            "deletionTimestamp" in metadata
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
        )
        if has_ended:
            self._store(kind).pop(key, None)
            self._notify(kind, "DELETED", body)
            self._collect(metadata["uid"])
            return
        self._store(kind)[key] = body
        self._notify(kind, "ADDED" if is_new else "MODIFIED", body)

    def _notify(self, kind: Kind[Any], event: str, body: Body) -> None:
        for queue in self._watchers.get(kind, ()):
            queue.put_nowait((event, body))

    def _delete(
        self, kind: Kind[Any], key: ObjectKey, before: Body, grace_period_seconds: int | None
    ) -> None:
        """Mark an object as being deleted; remove it if finalizers and grace period allow."""
        body = _copy(before)
        metadata = body["metadata"]
        grace = _grace(kind, body, grace_period_seconds)
        asked_at = self.clock()
        if "deletionTimestamp" in metadata:
            before_grace = metadata.get("deletionGracePeriodSeconds", 0)
            asked_at = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(
                seconds=before_grace
            )
            grace = min(grace, before_grace)  # a grace period can only become shorter
        metadata["deletionTimestamp"] = _timestamp(asked_at + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if body != before:
            self._save(kind, key, body)

    def _dependents(self, uid: str) -> builtins.list[tuple[Kind[Any], ObjectKey]]:
        return [
            (kind, key)
            for kind, store in self._objects.items()
            for key, body in store.items()
            if any(o.get("uid") == uid for o in body["metadata"].get("ownerReferences") or ())
        ]

    def _collect(self, uid: str) -> None:
        """Delete the dependents of a removed object that have no other living owner."""
        living = {b["metadata"]["uid"] for s in self._objects.values() for b in s.values()}
        for kind, key in self._dependents(uid):
            body = self._store(kind).get(key)
            if body is None:
                continue
            if not any(o.get("uid") in living for o in body["metadata"]["ownerReferences"]):
                self._delete(kind, key, body, None)

    def _spend_budget(self, pod: Body) -> None:
        """Reduce the PodDisruptionBudget of a pod by one.

        Raises:
            TooManyRequestsError: it allows no disruption.
            UnavailableError: the pod has several budgets (status 500, as on a real server).

        """
        namespace = pod["metadata"]["namespace"]
        matching = [
            (key, budget)
            for key, budget in self._store(kinds.POD_DISRUPTION_BUDGET).items()
            if key[0] == namespace
            and _selects(budget.get("spec", {}).get("selector"), _labels(pod))
        ]
        if len(matching) > 1:
            raise UnavailableError(
                "This pod has more than one PodDisruptionBudget, "
                "which the eviction subresource does not support.",
                status=500,
                reason="InternalError",
            )
        for key, before in matching:
            if _may_go_unready(before, pod):
                continue
            budget = _copy(before)
            allowed = budget.setdefault("status", {}).get("disruptionsAllowed", 0)
            if allowed <= 0:
                raise TooManyRequestsError(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    status=429,
                    reason="TooManyRequests",
                )
            budget["status"]["disruptionsAllowed"] = allowed - 1
            self._save(kinds.POD_DISRUPTION_BUDGET, key, budget)


def _decode(kind: Kind[T], body: Body) -> T:
    return msgspec.convert(body, kind.type)


def _check(kind: Kind[Any], body: Body) -> None:
    """Raise InvalidError for a body that the kind's type does not accept."""
    try:
        msgspec.convert(body, kind.type)
    except msgspec.ValidationError as error:
        raise InvalidError(f"{kind.name}: {error}", status=422, reason="Invalid") from None


def _copy(body: Any) -> Any:
    """Return a deep copy of a body; many times faster than `deepcopy`."""
    return msgspec.to_builtins(body)


def _key(kind: Kind[Any], body: Body) -> ObjectKey:
    metadata = body["metadata"]
    return (metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])


def _labels(body: Body) -> Mapping[str, str]:
    labels: Mapping[str, str] = body["metadata"].get("labels") or {}
    return labels


def _desired_state(body: Body) -> Body:
    return {name: part for name, part in body.items() if name not in ("metadata", "status")}


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396) to a copy."""
    if not isinstance(patch, Mapping):
        return _copy(patch)
    result = _copy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _expect(kind: Kind[Any], body: Body, *, resource_version: str = "", uid: str = "") -> None:
    metadata = body["metadata"]
    wanted = {"resourceVersion": resource_version, "uid": uid}
    for name, value in wanted.items():
        if value and metadata[name] != value:
            raise ConflictError(
                f"{kind.plural} {metadata['name']!r}: {name} is {metadata[name]}, not {value}",
                status=409,
                reason="Conflict",
            )


def _grace(kind: Kind[Any], body: Body, asked: int | None) -> int:
    """Return the kubelet's grace period for the object, in seconds; only bound pods have one."""
    spec = body.get("spec", {})
    over = body.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if kind != kinds.POD or not spec.get("nodeName") or over:
        return 0
    if asked is not None:
        return asked
    grace: int = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    return grace


def _may_go_unready(budget: Body, pod: Body) -> bool:
    """Return whether the budget allows the eviction of a pod that is not Ready."""
    conditions = pod.get("status", {}).get("conditions", ())
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    policy = budget.get("spec", {}).get("unhealthyPodEvictionPolicy")
    return policy == "AlwaysAllow" and not is_ready


Labels = Mapping[str, str]

_TERM = re.compile(r"(!?)([^\s,!=()]+)\s*(?:(==?|!=)\s*([^\s,()]*)|(in|notin)\s*\(([^)]*)\))?\s*$")
_COMMA = re.compile(r",(?![^(]*\))")


def _label_terms(selector: str) -> Iterator[Callable[[Labels], bool]]:
    """Yield the terms of a label selector in query syntax."""
    for text in filter(None, (part.strip() for part in _COMMA.split(selector))):
        match = _TERM.match(text)
        if match is None:
            raise InvalidError(f"unable to parse the label selector {selector!r}", status=400)
        absent, key, equality, value, membership, values = match.groups()
        if equality:
            yield _expression(key, "NotIn" if equality == "!=" else "In", [value])
        elif membership:
            listed = [v.strip() for v in values.split(",")]
            yield _expression(key, "In" if membership == "in" else "NotIn", listed)
        else:
            yield _expression(key, "DoesNotExist" if absent else "Exists", [])


def _expression(key: str, operator: str, values: list[str]) -> Callable[[Labels], bool]:
    tests: dict[str, Callable[[Labels], bool]] = {
        "In": lambda labels: labels.get(key) in values,
        "NotIn": lambda labels: labels.get(key) not in values,
        "Exists": lambda labels: key in labels,
        "DoesNotExist": lambda labels: key not in labels,
    }
    return tests[operator]


def _selects(selector: Body | None, labels: Labels) -> bool:
    """Return whether a LabelSelector matches: None matches nothing, an empty one everything."""
    if selector is None:
        return False
    equal = all(labels.get(k) == v for k, v in (selector.get("matchLabels") or {}).items())
    return equal and all(
        _expression(e["key"], e["operator"], e.get("values") or [])(labels)
        for e in selector.get("matchExpressions") or ()
    )


def _field_terms(selector: str) -> Iterator[Callable[[Body], bool]]:
    """Yield the terms of a field selector such as `spec.nodeName=a,status.phase!=Failed`."""
    for text in filter(None, selector.split(",")):
        path, negated, value = re.split(r"(!?)==?", text, maxsplit=1)

        def holds(body: Body, path: str = path, negated: str = negated, value: str = value) -> bool:
            value_there: Any = body
            for step in path.split("."):
                value_there = value_there.get(step) if isinstance(value_there, dict) else None
            return ((value_there or "") == value) != bool(negated)

        yield holds
