"""The interface of a stand-in provider, in plain values.

`service` does the rest: it decodes the engine's requests, finds the differences, keeps secrets
secret, and encodes the answers. The exceptions:

* ProviderError               a message for the user, without a traceback
  x PartialFailureError       the resource exists, but is not ready
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from testbed.plugins.codec import Bag


class ProviderError(Exception):
    """An error with a message for the user."""


class PartialFailureError(ProviderError):
    """The resource exists under `identity`, but is not ready.

    The engine records the resource with the reasons, so that the next update repairs it. `inputs`
    describe the live resource after a read; None means the inputs of the request.
    """

    def __init__(
        self, identity: str, outputs: Bag, reasons: list[str], inputs: Bag | None = None
    ) -> None:
        self.identity = identity
        self.outputs = outputs
        self.reasons = reasons
        self.inputs = inputs
        super().__init__("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Fault:
    """One input that is not accepted, and the reason."""

    property: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The inputs of a resource to check, including secrets and unknowns.

    `new` are the program's inputs before defaults. `old` are the inputs in the state, empty for a
    new resource.
    """

    type: str
    name: str
    old: Bag
    new: Bag
    proposed_name: str | None = None
    random_seed: bytes = b""


@dataclass(frozen=True, slots=True)
class Checked:
    """All inputs with their defaults, and the faults found in them."""

    inputs: Bag
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Created:
    """A new resource."""

    identity: str
    outputs: Bag


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A live resource: its outputs, and the inputs that describe it."""

    identity: str
    outputs: Bag
    inputs: Bag


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The resource that the engine works on, and a way to report progress."""

    type: str
    identity: str = ""
    timeout: float | None = None
    """The program's time limit for the operation, in seconds; None if it sets none."""
    report: Callable[[str], None]
    """Shows a line of progress beside the resource."""
    warn: Callable[[str], None] = print
    """Prints a warning about the resource, which stays in the output."""


class Provider(ABC):
    """A stand-in provider without its gRPC side. Calls arrive on many threads at once."""

    name: ClassVar[str]
    version: ClassVar[str]

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        """Set when the user interrupts; waits should end then."""

    def check_settings(self, settings: Bag) -> list[Fault]:
        """Return the faults in the provider's own settings; none by default."""
        del settings
        return []

    def must_replace_settings(self, path: str, old: Bag, new: Bag) -> bool:
        """Return whether a changed setting replaces every resource; False by default."""
        del path, old, new
        return False

    @abstractmethod
    def configure(self, settings: Bag) -> None:
        """Apply the provider's settings; called once, before any resource."""

    @abstractmethod
    def check(self, proposal: Proposal) -> Checked:
        """Return the inputs with defaults, and the faults found in them."""

    def baseline(self, type_: str, state: Bag, old: Bag, new: Bag) -> Bag:
        """Return what the new inputs are compared with: by default, the old inputs.

        `state` are the outputs in the state, which have more properties than the program set.
        """
        del type_, state, new
        return old

    @abstractmethod
    def must_replace(self, type_: str, path: str, old: Bag, new: Bag) -> bool:
        """Return whether a change at a path forces a replacement."""

    @abstractmethod
    def must_delete_first(self, type_: str, old: Bag, new: Bag) -> bool:
        """Return whether the old resource must be deleted before its replacement is created."""

    @abstractmethod
    def preview(self, work: Work, state: Bag, inputs: Bag) -> Bag:
        """Return the expected outputs, `UNKNOWN` where they are known only after the operation."""

    @abstractmethod
    def create(self, work: Work, inputs: Bag) -> Created:
        """Create the resource; return its ID and outputs.

        Raises:
            PartialFailureError: the resource exists, but is not ready.
            ProviderError: it was not created.

        """

    @abstractmethod
    def read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        """Return the live resource, or None if it is gone. Imports have no state and no inputs."""

    @abstractmethod
    def update(self, work: Work, state: Bag, old: Bag, new: Bag) -> Bag:
        """Update the resource from the old inputs to the new; return the outputs."""

    @abstractmethod
    def delete(self, work: Work, state: Bag) -> None:
        """Delete the resource; no error if it is gone already."""

    @abstractmethod
    def invoke(self, function: str, arguments: Mapping[str, Any]) -> Bag:
        """Return the answer of one of the provider's functions."""
