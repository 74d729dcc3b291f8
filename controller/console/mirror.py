"""The objects of a cluster, kept up to date by watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from controller.apis.kinds import KIND_OF, POD, Kind, T
from controller.apis.kubernetes.meta import Wire
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.port import Change
from controller.offline.world import Objects
from controller.state.cluster import key_of
from controller.state.sharing import Replicas

_T = TypeVar("_T", bound=Wire)


class Mirror:
    """The objects of some kinds; unlike the controller's mirror, with NodePools of other tools."""

    def __init__(self, kinds: Iterable[Kind[Any]]) -> None:
        self._objects: dict[Kind[Any], dict[str, Any]] = {kind: {} for kind in kinds}
        self._listings: dict[Kind[Any], set[str]] = {}
        self._replicas = Replicas()
        self.awaited = set(self._objects)
        """The kinds that have not been listed yet."""

    @property
    def kinds(self) -> Sequence[Kind[Any]]:
        """The kinds of the objects."""
        return tuple(self._objects)

    def apply(self, kind: Kind[T], change: Change[T]) -> None:
        """Apply one step of a watch; objects that a new list does not contain are removed."""
        objects = self._objects[kind]
        if change.type == "RESET":
            self._listings[kind] = set()
        elif change.type == "SYNCED":
            listed = self._listings.pop(kind, set())
            for key in objects.keys() - listed:
                del objects[key]
            self.awaited.discard(kind)
        elif change.object is not None:
            key = key_of(change.object)
            if change.type == "DELETED":
                objects.pop(key, None)
                return
            if kind in self._listings:
                self._listings[kind].add(key)
            is_pod = kind == POD
            objects[key] = (
                self._replicas.share(cast(Pod, change.object)) if is_pod else change.object
            )

    def absent(self, kind: Kind[Any]) -> None:
        """Record that the cluster has no objects of a kind, or that they cannot be listed."""
        self.apply(kind, Change("RESET"))
        self.apply(kind, Change("SYNCED"))

    def list(self, kind: Kind[T]) -> Sequence[T]:
        """Return the objects of a kind; none if the kind is not mirrored."""
        return tuple(self._objects.get(kind, {}).values())

    def freeze(self) -> Objects:
        """Return the objects as they are now, for another thread."""
        taken: Mapping[Kind[Any], Sequence[Any]] = {kind: self.list(kind) for kind in self._objects}

        def of(kind: type[_T]) -> Sequence[_T]:
            return cast("Sequence[_T]", taken.get(KIND_OF[kind], ()))

        return of
