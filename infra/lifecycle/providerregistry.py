"""The dynamic providers of the program, by names that stay valid in states of stacks for years.

`pulumi destroy` runs the provider that a resource's state holds, pickled, with the version of the
program that is installed then. A state therefore holds only the name of the function `provider`
and a kind, which is a key of `PROVIDERS`. This module is never renamed, and no kind of a released
version is removed from `PROVIDERS`. The classes behind the kinds may be moved and renamed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pulumi.dynamic import DiffResult, ResourceProvider

from infra.lifecycle.enginecall import in_words
from infra.lifecycle.waiting import say

PROVIDERS: Mapping[str, str] = {
    "access-mapping": "infra.identity.access._RoleMappingProvider",
    "drain": "infra.lifecycle.teardown._DrainProvider",
    "deletion-guard": "infra.guards.deletionguard._DeletionGuardProvider",
    "image": "infra.deployment.image._PushedImageProvider",
    "installation": "infra.lifecycle.statefulprovider.StatefulProvider",
    "network-sweep": "infra.lifecycle.networksweep._NetworkSweepProvider",
    "no-association": "infra.identity.controlleridentity._NoAssociationProvider",
    "nothing-left": "infra.lifecycle.teardown._NothingLeftProvider",
    "pod-identity": "infra.identity.podidentity._PodIdentityProvider",
    "pool-owners": "infra.guards.poolowners._PoolOwnersProvider",
    "removal-proof": "infra.guards.removalproof._RemovalProofProvider",
    "spot-role": "infra.identity.iam._SpotRoleProvider",
}
"""Kind → module and name of the provider's class in this version."""


class RegisteredProvider(ResourceProvider):
    """Base class of providers that are pickled as their kind and fail without a traceback."""

    kind: ClassVar[str]
    """A key of `PROVIDERS`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap every method that the engine calls with `in_words`."""
        super().__init_subclass__(**kwargs)
        for name in ("check", "create", "read", "diff", "update", "delete"):
            if name in cls.__dict__:
                setattr(cls, name, in_words(cls.__dict__[name]))

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return provider, (self.kind,)


class UnknownProvider(RegisteredProvider):
    """The provider of a kind of resource that only a later version of the program knows.

    A resource of such a kind is in the state after a rollback. It is not changed. When it is
    removed from the state, nothing is deleted in AWS or in the cluster.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind  # type: ignore[misc]

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Report no change."""
        return DiffResult(changes=False)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Warn that the resource is removed from the state only."""
        say(
            f"warning: a later version of the program created {_id}, and this version does not "
            f"know resources of the kind {self.kind!r}: the resource is removed from the state "
            "only, and nothing is deleted for it"
        )


def provider(kind: str) -> Any:
    """Return the provider of a kind; one that does nothing if this version has no such kind."""
    return _class_of(kind)() if kind in PROVIDERS else UnknownProvider(kind)


def _class_of(kind: str) -> Any:
    module, _, name = PROVIDERS[kind].rpartition(".")
    return getattr(importlib.import_module(module), name)
