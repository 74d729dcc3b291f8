"""What our own resources have in common: each remembers what it was asked for.

A provider's `delete` is the same call when a resource is replaced and when its stack is
destroyed. So that replacing never tears anything down, a stack stays with what it was made
for, and what this process has made again is not taken down by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pulumi.dynamic import CreateResult, DiffResult, ResourceProvider, UpdateResult

from infra.remembering import Remembered

PLACE = ("cluster_name", "region", "installation")
"""What a stack is made for: the names of the properties that say so."""

_made: set[tuple[str, ...]] = set()
"""What this process has made; the engine starts one for each of its operations."""


class ChangedPlaceError(Exception):
    """The stack was made for something else, and does not move."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        changed = [name for name in PLACE if name in before and before[name] != after.get(name)]
        settings = {name: "clusterName" if name == "cluster_name" else name for name in PLACE}
        moves = "; ".join(
            f"joiner:{settings[name]} was {before[name]} and would be {after.get(name)}"
            for name in changed
        )
        super().__init__(
            f"this stack cannot be moved: {moves}. Nothing has been changed. Set it back (after "
            "`pulumi stack rename`, set joiner:installation to what it was); for another cluster, "
            "make another stack (pulumi stack init), and destroy this one when it is no longer "
            "needed"
        )


MADE_AT = "cluster_made_at"
"""The property that tells a cluster from an earlier one of its name; not all resources have it."""


class ClusterMadeAnewError(Exception):
    """EKS has another cluster of the name, and of what the stack knows nothing is in it."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        super().__init__(
            f"the cluster {after['cluster_name']} was made anew: this stack was made on one of "
            f"{before[MADE_AT]}, and EKS has one of {after[MADE_AT]}. What the stack has put into "
            "the former went with it, and would not be made again. Nothing has been changed. Take "
            "the stack down (PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy), which also ends "
            "instances that are left, and run `pulumi up` again"
        )


class StatefulProvider(Remembered, ResourceProvider):
    """Makes nothing by itself, and keeps its properties for when they are needed."""

    kind = "installation"

    # The provider's code is no secret, and a state that can be read can be mended.
    serialize_as_secret_always = False

    identity: ClassVar[tuple[str, ...]] = ("cluster_name",)
    """The properties that name the resource; a change of one that does not say where the stack
    is makes another resource."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Keep the properties, under a name made of those that identify it."""
        _made.add(self._key(props))
        return CreateResult("-".join(self._key(props)), _plain(props))

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Compare what is kept with what is asked for.

        Raises:
            ChangedPlaceError: it would be another cluster's, or another installation's.
            ClusterMadeAnewError: the cluster of this name is another one.

        """
        if any(name in olds and olds[name] != news.get(name) for name in PLACE):
            raise ChangedPlaceError(olds, news)
        if olds.get(MADE_AT) and news.get(MADE_AT) and olds[MADE_AT] != news[MADE_AT]:
            raise ClusterMadeAnewError(olds, news)
        changed = [key for key, value in _plain(news).items() if olds.get(key) != value]
        replaces = [key for key in changed if key in self.identity]
        return DiffResult(changes=bool(changed), replaces=replaces, delete_before_replace=False)

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Keep the new properties."""
        return UpdateResult(_plain(news))

    def delete(self, _id: str, props: dict[str, Any]) -> None:
        """End it, unless it has just been made again."""
        if self._key(props) not in _made:
            self.end(props)

    def _key(self, props: Mapping[str, Any]) -> tuple[str, ...]:
        return (*(str(props[name]) for name in self.identity), self.kind)

    def end(self, props: dict[str, Any]) -> None:
        """Do what its end asks for; nothing, by default."""


def _plain(props: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in props.items() if not key.startswith("__")}
