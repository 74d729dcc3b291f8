"""What a stand-in provider must answer, in plain values.

`service` does the rest: it decodes what the engine asks, finds the differences,
keeps secrets secret, and encodes the answer.

* ProviderError               something the user should read, without a traceback
  x PartialFailureError       the resource exists, but did not become right
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from testbed.plugins.codec import Bag


class ProviderError(Exception):
    """A refusal in words for the user."""


class PartialFailureError(ProviderError):
    """The resource exists under `identity`, but did not become right.

    The engine records it with the reasons, so that the next update mends it.
    """

    def __init__(self, identity: str, outputs: Bag, reasons: list[str]) -> None:
        self.identity = identity
        self.outputs = outputs
        self.reasons = reasons
        super().__init__("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Fault:
    """One input that cannot be accepted, and why."""

    property: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What the program asks for, before defaults: secrets and unknowns still in place."""

    type: str
    name: str
    old: Bag
    new: Bag
    proposed_name: str | None = None
    random_seed: bytes = b""


@dataclass(frozen=True, slots=True)
class Checked:
    """All inputs with their defaults, and what is wrong with them."""

    inputs: Bag
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Created:
    """A new resource."""

    identity: str
    outputs: Bag


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A resource as it is: its outputs, and the inputs that would make it so."""

    identity: str
    outputs: Bag
    inputs: Bag


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One resource the engine works on, and how it may be told of progress."""

    type: str
    identity: str = ""
    timeout: float | None = None
    """Seconds; None where the program sets no limit of its own."""
    tell: Callable[[str], None]
    """Shows a line of progress beside the resource."""


class Provider(ABC):
    """A stand-in, apart from its gRPC side. Calls arrive on many threads at once."""

    name: ClassVar[str]
    version: ClassVar[str]

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        """Set when the user interrupts: waits should end."""

    def check_settings(self, settings: Bag) -> list[Fault]:
        """Find what is wrong with the provider's own settings; nothing, by default."""
        del settings
        return []

    def must_replace_settings(self, path: str, old: Bag, new: Bag) -> bool:
        """Whether a changed setting makes all that was made anew; by default it does not."""
        del path, old, new
        return False

    @abstractmethod
    def configure(self, settings: Bag) -> None:
        """Take the provider's settings; called once, before any resource."""

    @abstractmethod
    def check(self, proposal: Proposal) -> Checked:
        """Add the defaults to the inputs and find what is wrong with them."""

    @abstractmethod
    def must_replace(self, type_: str, path: str, old: Bag, new: Bag) -> bool:
        """Whether a change at the path needs a new resource."""

    @abstractmethod
    def must_delete_first(self, type_: str, old: Bag, new: Bag) -> bool:
        """Whether the old resource stands in the way of the new one."""

    @abstractmethod
    def preview(self, work: Work, state: Bag, inputs: Bag) -> Bag:
        """Forecast the outputs, `UNKNOWN` where only the real thing can tell."""

    @abstractmethod
    def create(self, work: Work, inputs: Bag) -> Created:
        """Make the resource."""

    @abstractmethod
    def read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        """Look the resource up; None when it is gone. Imports come without state and inputs."""

    @abstractmethod
    def update(self, work: Work, state: Bag, old: Bag, new: Bag) -> Bag:
        """Change the resource from the old inputs to the new; return the outputs."""

    @abstractmethod
    def delete(self, work: Work, state: Bag) -> None:
        """Remove the resource; one that is gone already is no error."""

    @abstractmethod
    def invoke(self, function: str, arguments: Mapping[str, Any]) -> Bag:
        """Answer one of the provider's functions."""
