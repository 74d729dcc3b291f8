"""Base class of this program's dynamic providers: each stores its inputs in the state.

Pulumi calls a provider's `delete` both when a resource is replaced and when the stack is
destroyed. Only a destroy may delete nodes, for example. So `diff` refuses a change of the cluster,
region or installation, and `delete` ignores a resource if this process has created one with its ID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pulumi.dynamic import CreateResult, DiffResult, UpdateResult

from infra.lifecycle.providerregistry import RegisteredProvider

PLACE = ("cluster_name", "region", "installation")
"""Properties that cannot change during the life of a stack."""

_made: set[tuple[str, ...]] = set()
"""Keys of what this process created. The engine starts one process for each operation."""


class StackMovedError(Exception):
    """The stack belongs to another cluster, region or installation, and cannot move."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        changed = [name for name in PLACE if name in before and before[name] != after.get(name)]
        settings = {name: "clusterName" if name == "cluster_name" else name for name in PLACE}
        moves = "; ".join(
            f"joiner:{settings[name]} changes from {before[name]} to {after.get(name)}"
            for name in changed
        )
        super().__init__(
            f"this stack cannot be moved: {moves}. Nothing has been changed. Set it back (after "
            "`pulumi stack rename`, set joiner:installation to its old value). For another "
            "cluster, create another stack (pulumi stack init), and destroy this one when it is "
            "no longer needed"
        )


MADE_AT = "cluster_made_at"
"""Optional property: the creation time of the cluster, which identifies it among its namesakes."""


class ClusterRecreatedError(Exception):
    """The cluster was deleted and created again, so nothing of the stack is in it."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        super().__init__(
            f"EKS cluster {after['cluster_name']} was created again: this stack belongs to a "
            f"cluster created at {before[MADE_AT]}, and the current one was created at "
            f"{after[MADE_AT]}. The stack's objects were deleted with the old cluster, and "
            "`pulumi up` would not create them again. Nothing has been changed. Destroy the stack "
            "(PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy), which also terminates remaining "
            "instances, and run `pulumi up` again"
        )


class StatefulProvider(RegisteredProvider):
    """Creates nothing, and stores its properties in the state for its deletion."""

    kind = "installation"

    # The provider's code is no secret, and a readable state can be repaired.
    serialize_as_secret_always = False

    identity: ClassVar[tuple[str, ...]] = ("cluster_name",)
    """Properties that identify the resource. A change of one that is not in `PLACE` replaces it."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Store the properties. The ID consists of those that `identity` names, and the kind."""
        _made.add(self._key(props))
        return CreateResult("-".join(self._key(props)), plain(props))

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Return whether the new properties differ from the stored ones.

        Raises:
            StackMovedError: the cluster, region or installation changed.
            ClusterRecreatedError: the cluster was deleted and created again.

        """
        if any(name in olds and olds[name] != news.get(name) for name in PLACE):
            raise StackMovedError(olds, news)
        if olds.get(MADE_AT) and news.get(MADE_AT) and olds[MADE_AT] != news[MADE_AT]:
            raise ClusterRecreatedError(olds, news)
        changed = [key for key, value in plain(news).items() if olds.get(key) != value]
        replaces = [key for key in changed if key in self.identity]
        return DiffResult(changes=bool(changed), replaces=replaces, delete_before_replace=False)

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Store the new properties."""
        return UpdateResult(plain(news))

    def delete(self, _id: str, props: dict[str, Any]) -> None:
        """Call `end`, unless this process has just created the resource again."""
        if self._key(props) not in _made:
            self.end(props)

    def _key(self, props: Mapping[str, Any]) -> tuple[str, ...]:
        return (*(str(props[name]) for name in self.identity), self.kind)

    def end(self, props: dict[str, Any]) -> None:
        """Act on the deletion of the resource; does nothing by default."""


def plain(props: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that the state stores: all but those of Pulumi itself."""
    return {key: value for key, value in props.items() if not key.startswith("__")}
