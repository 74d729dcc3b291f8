"""The declaration of a resource type, on which the provider relies."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag
from testbed.plugins.differences import lies_under
from testbed.plugins.provider import ProviderError

Function = Callable[[Session, Mapping[str, Any]], Bag]
"""A function of the provider: (session, arguments) → answer."""


class Resource(ABC):
    """One resource type. An instance serves one call."""

    token: ClassVar[str]
    """The engine's name of the type."""
    source: ClassVar[str]
    """The real provider's source file, below `internal/service` in terraform-provider-aws.

    `fixed` corresponds to its `ForceNew` and `RequiresReplace`, `exclusive` to `ConflictsWith`.
    """
    service: ClassVar[str]
    """boto3's name of the service."""
    is_regional: ClassVar[bool] = True
    """Whether the type has a `region` input, whose change forces a replacement."""
    is_taggable: ClassVar[bool] = False
    """Whether the type has `tags`, to which the provider adds its default tags."""
    automatic_name: ClassVar[str | None] = None
    """The input that gets an automatic name if the program gives none."""
    name_limit: ClassVar[int] = 64
    """Largest number of characters in that name."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """The inputs whose change forces a replacement."""
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of mutually exclusive inputs, in addition to a name and its prefix."""
    computed: ClassVar[tuple[str, ...]] = ()
    """The outputs that are known only after creation."""
    advancing: ClassVar[tuple[str, ...]] = ()
    """The outputs that every update changes."""
    blocks: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Nested inputs to which AWS adds members → those members, known only after creation."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The default values of the real provider, by input."""
    documents: ClassVar[tuple[str, ...]] = ()
    """The inputs that are JSON documents and are compared by meaning."""
    sticky: ClassVar[tuple[str, ...]] = ()
    """The inputs whose removal is no change: the real provider sends the value of the state."""
    retried: ClassVar[tuple[str, ...]] = ()
    """Texts of errors (InvalidParameterException) for which the creation is retried."""
    settling_seconds: ClassVar[float] = 120.0
    """How long AWS may take to show a new resource; 0 if the first read must find it."""

    def __init__(self, session: Session, region: str | None = None) -> None:
        self.session = session
        self.region = region or session.region

    @cached_property
    def api(self) -> Any:
        """The boto3 client of the service, in the resource's region."""
        return self.session.client(self.service, self.region)

    @classmethod
    def replaces(cls, path: str, old: Bag, new: Bag) -> bool:
        """Return whether a change at a path forces a replacement."""
        del old, new
        return lies_under(path, (*cls.fixed, "region"))

    @abstractmethod
    def create(self, inputs: Bag) -> str:
        """Create the resource; return its ID."""

    def complete(self, identity: str, inputs: Bag) -> None:
        """Make the calls that follow the creation.

        If one fails, the resource exists nevertheless.
        """
        del identity, inputs

    @abstractmethod
    def read(self, identity: str, state: Bag) -> Bag | None:
        """Return every property, None for unset ones; return None if the resource is gone.

        An error with one of `GONE_CODES` means that it is gone, too. An imported resource has an ID
        and no state.
        """

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        """Update the resource from the old inputs to the new. Raises `ProviderError` by default."""
        raise ProviderError(f"{self.token} {identity} cannot be updated: {old} → {new}")

    def retag(self, thing: str, old: Bag, new: Bag, **named: str) -> None:
        """Change the tags with the operations `tag_<thing>` and `untag_<thing>` of the service.

        `named` is the argument that names the resource, such as `RoleName` for the thing "role".
        Only for services whose operations take tags as a list, in `Tags`.
        """
        change_tags(
            old,
            new,
            tag=lambda tags: getattr(self.api, f"tag_{thing}")(**named, Tags=to_tag_list(tags)),
            untag=lambda keys: getattr(self.api, f"untag_{thing}")(**named, TagKeys=keys),
        )

    @abstractmethod
    def delete(self, identity: str, state: Bag) -> None:
        """Delete the resource."""


def canonical(document: str) -> str:
    """Return the canonical text of a JSON document. Raises ValueError if it is not JSON."""
    return json.dumps(json.loads(document), separators=(",", ":"), sort_keys=True)


def to_tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return tags as the list that most services expect."""
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def from_tag_list(tags: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    """Return tags as the map that programs use."""
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def change_tags(
    old: Bag,
    new: Bag,
    *,
    tag: Callable[[dict[str, str]], object],
    untag: Callable[[list[str]], object],
) -> None:
    """Make the calls, if any, that change the tags of the old inputs to those of the new."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    if removed := [key for key in before if key not in after]:
        untag(removed)
    if changed := {key: value for key, value in after.items() if before.get(key) != value}:
        tag(changed)


def api_arguments(inputs: Mapping[str, Any] | None, *alike: str, **renamed: str) -> dict[str, Any]:
    """Return the set inputs under the API's names: `api_arguments(inputs, "tags", Path="path")`."""
    names, given = dict(zip(alike, alike, strict=True)) | renamed, inputs or {}
    return {name: given[key] for name, key in names.items() if given.get(key) is not None}


def name_of(inputs: Bag) -> str:
    """Return the resource's name: the given one, or a random one with the given prefix."""
    if inputs.get("name"):
        return str(inputs["name"])
    return f"{inputs['namePrefix']}{secrets.token_hex(6)}"
