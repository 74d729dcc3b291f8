"""Names by which a stack's state knows the code that ends its resources; they hold for good.

`pulumi destroy` runs the provider that a resource's state holds, pickled, in whatever version
of this package is installed then. So a state holds no more of ours than the name of `provider`
and a kind: this module is never renamed, no kind is ever taken out of `PROVIDERS`, and what a
kind stands for may be moved and renamed as one likes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

PROVIDERS: Mapping[str, str] = {
    "access-mapping": "infra.access._RoleMappingProvider",
    "drain": "infra.teardown._DrainProvider",
    "holdings": "infra.holdings._HoldingsProvider",
    "image": "infra.image._PushedImageProvider",
    "installation": "infra.statefulprovider.StatefulProvider",
    "no-association": "infra.identity._NoAssociationProvider",
    "node-role-name": "infra.noderolename._NodeRoleNameProvider",
    "nothing-left": "infra.teardown._NothingLeftProvider",
    "pod-identity": "infra.podidentity._PodIdentityProvider",
    "pool-owners": "infra.poolowners._PoolOwnersProvider",
    "spot-role": "infra.iam._SpotRoleProvider",
}
"""What a state calls a provider → module and name of its class today."""

EARLIER: Mapping[str, str] = {"Remembering": "installation"}
"""Names that states of earlier versions look for here → the kind they stand for. Those states
name the other classes by module and name: these stay where `PROVIDERS` says, or leave their
old name behind."""


class Remembered:
    """Is pickled by its kind."""

    kind: ClassVar[str]
    """A key of `PROVIDERS`."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return provider, (self.kind,)


def provider(kind: str) -> Any:
    """Return what answers today for the resources that a state calls by this kind."""
    return _class_of(kind)()


def _class_of(kind: str) -> Any:
    module, _, name = PROVIDERS[kind].rpartition(".")
    return getattr(importlib.import_module(module), name)


def __getattr__(name: str) -> Any:
    if name in EARLIER:
        return _class_of(EARLIER[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
