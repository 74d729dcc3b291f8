"""Indices of the mirrored objects by one property, updated with each event."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic

from controller.apis.kinds import Kind, T


class Index(Generic[T]):
    """The objects of one kind by group; `group` returns an object's group, empty for none.

    Cost: O(1) per change and O(group) per read, independent of the size of the cluster.
    """

    def __init__(self, kind: Kind[T], group: Callable[[T], str]) -> None:
        self.kind = kind
        self._group = group
        self._members: dict[str, dict[str, T]] = {}

    def add(self, key: str, value: T) -> None:
        """Add the object of this key to its group."""
        if group := self._group(value):
            self._members.setdefault(group, {})[key] = value

    def discard(self, key: str, value: T) -> None:
        """Remove the object of this key, as it was added, from its group."""
        group = self._group(value)
        if (members := self._members.get(group)) is not None:
            members.pop(key, None)
            if not members:
                del self._members[group]

    def copy(self) -> Index[T]:
        """Return a copy of the index that does not change."""
        copy = Index(self.kind, self._group)
        copy._members = {group: members.copy() for group, members in self._members.items()}
        return copy

    def of(self, group: str) -> Collection[T]:
        """Return the members of a group in the order of their addition."""
        return self._members.get(group, {}).values()

    def sorted_by_name(self, group: str) -> tuple[T, ...]:
        """Return the members of a group, sorted by name."""
        members = self._members.get(group, {})
        return tuple(members[key] for key in sorted(members))
