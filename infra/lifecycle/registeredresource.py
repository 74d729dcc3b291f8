"""Base class of this program's dynamic resources, and how the engine runs their providers.

In a Python program, the engine runs `pulumi.dynamic` in the virtual environment of the project,
which has Joiner. A program that uses Joiner as a Pulumi package has no such environment, and may be
in another language. There the resources belong to the package, and its own process runs their
providers (`infra.plugin.server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import pulumi
from pulumi.dynamic import Resource
from pulumi.resource import DependencyProviderResource

from infra.lifecycle.providerregistry import RegisteredProvider

PROVIDER: Final = "__provider"
"""The property that names the provider: pickled, or its kind if a package runs it."""


@dataclass(frozen=True)
class PackageReference:
    """A Pulumi package whose process runs the providers of resources."""

    name: str
    provider: str
    """Reference to the engine's provider of this process: URN and ID, joined by `::`.

    Without it, the engine searches for a plugin with the name of the package. It finds none if the
    program added the package from a Git URL: such a plugin is known by its URL.
    """


package: ContextVar[PackageReference | None] = ContextVar("package", default=None)
"""The package to which the resources that are created belong; None in a Python program."""


class _OfPackage(pulumi.CustomResource):
    """Moves a dynamic resource into the current package."""

    _kind: str

    def __init__(
        self, type_: str, name: str, props: dict[str, Any], opts: pulumi.ResourceOptions | None
    ) -> None:
        if current := package.get():
            type_ = f"{current.name}:{type_.partition(':')[2]}"
            props[PROVIDER] = self._kind
            provider = DependencyProviderResource(current.provider)
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(provider=provider))
        super().__init__(type_, name, props, opts)


class RegisteredResource(Resource, _OfPackage):
    """A resource whose provider is in the registry of providers."""

    def __init__(
        self,
        provider: RegisteredProvider,
        name: str,
        props: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        self._kind = provider.kind
        super().__init__(provider, name, dict(props), opts)
