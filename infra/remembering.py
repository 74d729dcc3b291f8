"""What our own resources have in common: each remembers what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pulumi.dynamic import CreateResult, DiffResult, ResourceProvider, UpdateResult


class Remembering(ResourceProvider):
    """Makes nothing by itself, and keeps its properties for when they are needed."""

    # The provider's code is no secret, and a state that can be read can be mended.
    serialize_as_secret_always = False

    identity: ClassVar[tuple[str, ...]] = ("cluster_name", "region")
    """The properties whose change makes it another resource."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Keep the properties, under a name made of those that identify it."""
        named = "-".join(str(props[name]) for name in self.identity if name != "region")
        return CreateResult(f"{named}-{type(self).__name__}", _plain(props))

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Compare what is kept with what is asked for."""
        changed = [key for key, value in _plain(news).items() if olds.get(key) != value]
        elsewhere = [key for key in changed if key in self.identity]
        return DiffResult(changes=bool(changed), replaces=elsewhere, delete_before_replace=True)

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Keep the new properties."""
        return UpdateResult(_plain(news))


def _plain(props: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in props.items() if not key.startswith("__")}
