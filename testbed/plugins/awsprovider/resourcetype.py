"""What the provider must know of a resource type."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

Function = Callable[[Session, Mapping[str, Any]], Bag]
"""A function of the provider: session and arguments → answer."""


class Resource(ABC):
    """One resource type. An instance lives for one call."""

    token: ClassVar[str]
    """The engine's name of the type."""
    source: ClassVar[str]
    """Where the real provider declares it: a file below `internal/service` in
    terraform-provider-aws. What is `fixed` here is what `ForceNew` and `RequiresReplace` say
    there, and what is `exclusive` what `ConflictsWith` says."""
    service: ClassVar[str]
    """boto3's name of the service that keeps it."""
    is_regional: ClassVar[bool] = True
    """Whether it has a `region` input, which is then fixed for life."""
    is_taggable: ClassVar[bool] = False
    """Whether it has `tags`, which the provider's default tags join."""
    automatic_name: ClassVar[str | None] = None
    """The input that gets a name where the program gives none."""
    name_limit: ClassVar[int] = 64
    """The most characters the service allows in that name."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """The inputs whose change needs a new resource."""
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of inputs of which only one may be given, beside a name and its prefix."""
    computed: ClassVar[tuple[str, ...]] = ()
    """The outputs that only exist once the resource does."""
    blocks: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Nested inputs that come back with more in them, and those of their members that only exist
    once the resource does."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The inputs that the real provider fills in."""
    documents: ClassVar[tuple[str, ...]] = ()
    """The inputs that are JSON documents, compared by meaning."""

    def __init__(self, session: Session, region: str | None = None) -> None:
        self.session = session
        self.region = region or session.region

    @cached_property
    def api(self) -> Any:
        """The boto3 client of the service, in the resource's region."""
        return self.session.client(self.service, self.region)

    @abstractmethod
    def create(self, inputs: Bag) -> str:
        """Make the resource; return its id."""

    def complete(self, identity: str, inputs: Bag) -> None:
        """Do what must follow creation. If it fails, the resource exists all the same."""
        del identity, inputs

    @abstractmethod
    def read(self, identity: str, state: Bag) -> Bag | None:
        """Every property as it is, None for those not set; None if the resource is gone.

        A resource that is imported has an id and no state.
        """

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        """Change the resource from the old inputs to the new."""
        raise ProviderError(f"{self.token} {identity} has nothing that can change: {old} → {new}")

    @abstractmethod
    def delete(self, identity: str, state: Bag) -> None:
        """Remove the resource."""


def canonical(document: str) -> str:
    """The one spelling of a JSON document; raises ValueError if it is none."""
    return json.dumps(json.loads(document), separators=(",", ":"), sort_keys=True)


def to_tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Tags the way most services want them."""
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def from_tag_list(tags: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    """Tags the way programs want them."""
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def change_tags(
    old: Bag,
    new: Bag,
    *,
    tag: Callable[[dict[str, str]], object],
    untag: Callable[[list[str]], object],
) -> None:
    """Make the calls, if any, that turn the old inputs' tags into the new ones."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    if removed := [key for key in before if key not in after]:
        untag(removed)
    if changed := {key: value for key, value in after.items() if before.get(key) != value}:
        tag(changed)


def given(inputs: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The call's arguments among the inputs: `given(inputs, Path="path")`; unset ones left out."""
    return {
        argument: inputs[name] for argument, name in names.items() if inputs.get(name) is not None
    }


def name_of(inputs: Bag) -> str:
    """The name to create under: the given one, or one that begins as the program asks."""
    if inputs.get("name"):
        return str(inputs["name"])
    return f"{inputs['namePrefix']}{secrets.token_hex(6)}"
