"""A cloud provider that forwards every call, as the base of classes that extend some of them."""

from __future__ import annotations

from typing import Any

from controller.manager.assembly import RunningCloud


class CloudDecorator:
    """Forwards every call that a subclass does not define; implements `RunningCloud`."""

    def __init__(self, cloud: RunningCloud) -> None:
        self._cloud = cloud

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped cloud provider."""
        return getattr(self._cloud, name)
