"""Machine images: which ones a class selects, and which machines each serves.

An alias names a family and a version; SSM parameters that AWS publishes turn it
into image ids, one per architecture and variant. Other terms ask EC2 directly.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cachetools import TLRUCache, TTLCache

from controller.apis import labels
from controller.apis.ec2nodeclass import AMIStatus, EC2NodeClass, SelectorTerm
from controller.apis.taints import Requirement
from controller.aws.errors import AwsError
from controller.aws.families import Family, alias_of, family_of
from controller.aws.instancetypes import ARCHITECTURES, GPU_COUNT
from controller.aws.selectors import tag_filters
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PINNED_PERIOD = 24 * 3600.0
"""Seconds for which a parameter that never changes is believed."""

LATEST = "latest"
ACCELERATOR_COUNT = f"{labels.AWS_GROUP}/instance-accelerator-count"

STANDARD = (
    Requirement(key=ACCELERATOR_COUNT, operator="DoesNotExist"),
    Requirement(key=GPU_COUNT, operator="DoesNotExist"),
)
NVIDIA = (Requirement(key=GPU_COUNT, operator="Exists"),)
NEURON = (Requirement(key=ACCELERATOR_COUNT, operator="Exists"),)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An SSM parameter that holds an image id, and the machines each variant of it serves."""

    path: str
    variants: tuple[tuple[Requirement, ...], ...]
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as EC2 describes it."""

    id: str
    name: str
    architecture: str
    created: str
    deprecated: bool


class UnsupportedAliasError(CloudProviderError):
    """The alias names images that do not exist for the cluster's version."""

    reason = "UnsupportedAlias"


def parameters(family: Family, version: str, kubernetes: str) -> list[Parameter]:
    """Return the parameters behind an alias such as `al2023@latest`, for `1.36`.

    Raises:
        UnsupportedAliasError: the family has no images for this Kubernetes version.

    """
    pinned = version != LATEST
    minor = int(kubernetes.split(".")[1])
    match family.name:
        case "AL2023":
            paths = _al2023(version, kubernetes)
        case "AL2":
            if minor >= 33:
                raise UnsupportedAliasError(
                    f"there are no AL2 images for Kubernetes {kubernetes}; use al2023@{LATEST}"
                )
            paths = _al2(version, kubernetes)
        case "Bottlerocket":
            paths = _bottlerocket(version, kubernetes)
        case _:
            if family.alias == "windows2025" and minor < 35:
                raise UnsupportedAliasError(
                    f"there are no Windows 2025 images for Kubernetes {kubernetes}; "
                    "use windows2022@latest"
                )
            paths = _windows(family, kubernetes)
    return [Parameter(path, variants, pinned) for path, variants in paths]


Paths = Iterator[tuple[str, tuple[tuple[Requirement, ...], ...]]]


def _al2023(version: str, kubernetes: str) -> Paths:
    root = f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023"
    for architecture, variants in (
        ("x86_64", {"standard": STANDARD, "nvidia": NVIDIA, "neuron": NEURON}),
        ("arm64", {"standard": STANDARD, "nvidia": NVIDIA}),
    ):
        for variant, served in variants.items():
            name = f"amazon-eks-node-al2023-{architecture}-{variant}-{kubernetes}-{version}"
            release = "recommended" if version == LATEST else name
            yield f"{root}/{architecture}/{variant}/{release}/image_id", (served,)


def _al2(version: str, kubernetes: str) -> Paths:
    root = f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2"
    for suffix, prefix, variants in (
        ("", "amazon-eks-node", (STANDARD,)),
        ("-arm64", "amazon-eks-arm64-node", (STANDARD,)),
        ("-gpu", "amazon-eks-gpu-node", (NVIDIA, NEURON)),
    ):
        release = "recommended" if version == LATEST else f"{prefix}-{kubernetes}-{version}"
        yield f"{root}{suffix}/{release}/image_id", variants


def _bottlerocket(version: str, kubernetes: str) -> Paths:
    release = version.removeprefix("v")
    for flavour, architecture, variants in (
        ("", "x86_64", (STANDARD, NEURON)),
        ("", "arm64", (STANDARD,)),
        ("-nvidia", "x86_64", (NVIDIA,)),
        ("-nvidia", "arm64", (NVIDIA,)),
    ):
        root = f"/aws/service/bottlerocket/aws-k8s-{kubernetes}{flavour}/{architecture}"
        yield f"{root}/{release}/image_id", variants


def _windows(family: Family, kubernetes: str) -> Paths:
    year = family.name.removeprefix("Windows")
    served = (
        Requirement(key=labels.OS, operator="In", values=["windows"]),
        Requirement(key=labels.WINDOWS_BUILD, operator="In", values=[family.windows_build]),
    )
    name = f"Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}"
    yield f"/aws/service/ami-windows-latest/{name}/image_id", (served,)


class AMIs:
    """Finds images; classes that select the same share one answer."""

    def __init__(
        self,
        aws: Aws,
        *,
        period: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        # By path, and by whether the value never changes: each kind is believed for its own time.
        self._values: TLRUCache[tuple[str, bool], str, float] = TLRUCache(
            math.inf, lambda key, _, now: now + (PINNED_PERIOD if key[1] else period), clock
        )
        self._selected: TTLCache[object, tuple[AMIStatus, ...]] = TTLCache(math.inf, period, clock)
        self._asking = asyncio.Lock()

    async def find(self, node_class: EC2NodeClass, kubernetes: str) -> tuple[AMIStatus, ...]:
        """Return the images the class selects, newest first; one per set of machines.

        Raises:
            UnsupportedAliasError: the alias cannot be had for this Kubernetes version.

        """
        terms = node_class.spec.ami_selector_terms
        key = (repr(terms), family_of(node_class).name, kubernetes)
        async with self._asking:
            if images := self._selected.get(key):
                return images
            served = [pair async for pair in self._served(node_class, kubernetes)]
            images = self._selected[key] = tuple(chosen(served))
            return images

    def forget(self) -> None:
        """Look everything up anew next time."""
        self._selected.clear()
        self._values.clear()

    async def _served(self, node_class: EC2NodeClass, kubernetes: str) -> Any:
        """Yield each image with the requirements of machines it serves."""
        alias = alias_of(node_class)
        if alias is not None:
            async for pair in self._of_alias(*alias, kubernetes):
                yield pair
            return
        async for image in self._of_terms(node_class.spec.ami_selector_terms):
            yield image, (_runs_on(image),)

    async def _of_alias(self, family: Family, version: str, kubernetes: str) -> Any:
        ids: dict[str, list[tuple[Requirement, ...]]] = {}
        asked = parameters(family, version, kubernetes)
        values = await asyncio.gather(*(self._value(p.path, pinned=p.pinned) for p in asked))
        for parameter, image_id in zip(asked, values, strict=True):
            if image_id:
                ids.setdefault(image_id, []).extend(parameter.variants)
        if not ids:
            return
        for image in await self._by_id(sorted(ids)):
            for variant in ids[image.id]:
                yield image, (_runs_on(image), *variant)

    async def _of_terms(self, terms: Sequence[SelectorTerm]) -> Any:
        ids = {term.id for term in terms if term.id}
        for term in terms:
            if term.ssm_parameter:
                ids.add(await self._value(term.ssm_parameter, pinned=False) or "")
        ids.discard("")
        if ids:
            for image in await self._by_id(sorted(ids)):
                yield image
        for term in terms:
            if not term.id and not term.ssm_parameter and (filters := _filters(term)):
                for image in await self._describe(filters, _owners(term)):
                    yield image

    async def _by_id(self, ids: list[str]) -> list[Image]:
        # A filter, unlike the ids parameter, does not fail for an image that is gone.
        return await self._describe([{"Name": "image-id", "Values": ids}], [])

    async def _value(self, path: str, *, pinned: bool) -> str:
        """Return a parameter's value; empty when it does not exist."""
        if known := self._values.get((path, pinned)):
            return known
        try:
            answer = await self._aws.call("ssm", "get_parameter", Name=path)
        except AwsError as exc:
            if exc.is_not_found:
                return ""
            raise
        value = self._values[path, pinned] = str(answer["Parameter"]["Value"])
        return value

    async def _describe(self, filters: list[dict[str, Any]], owners: list[str]) -> list[Image]:
        described = await self._aws.pages(
            "ec2",
            "describe_images",
            "Images",
            Filters=[*filters, {"Name": "state", "Values": ["available"]}],
            IncludeDeprecated=True,
            **({"Owners": owners} if owners else {}),
        )
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return [
            Image(
                id=d["ImageId"],
                name=d.get("Name", ""),
                architecture=ARCHITECTURES[d["Architecture"]],
                created=d.get("CreationDate", ""),
                deprecated=bool(d.get("DeprecationTime")) and d["DeprecationTime"] <= now,
            )
            for d in described
            if d.get("Architecture") in ARCHITECTURES
        ]


def chosen(served: Iterable[tuple[Image, tuple[Requirement, ...]]]) -> Iterator[AMIStatus]:
    """Keep the best image for each set of machines, newest first.

    A living image is better than a deprecated one, then the newer, then the greater name.
    """
    best: dict[str, tuple[Image, tuple[Requirement, ...]]] = {}
    for image, requirements in served:
        key = repr(requirements)
        if key not in best or _rank(image) > _rank(best[key][0]):
            best[key] = (image, requirements)
    newest_first = sorted(best.values(), key=lambda pair: pair[0].id)
    newest_first.sort(key=lambda pair: pair[0].created, reverse=True)
    for image, requirements in newest_first:
        yield AMIStatus(
            id=image.id,
            name=image.name,
            deprecated=image.deprecated,
            requirements=list(requirements),
        )


def _rank(image: Image) -> tuple[bool, str, str]:
    return not image.deprecated, image.created, image.name


def _runs_on(image: Image) -> Requirement:
    return Requirement(key=labels.ARCH, operator="In", values=[image.architecture])


def _filters(term: SelectorTerm) -> list[dict[str, Any]]:
    """Return what images are found by; nothing selects none, though to EC2 it means all."""
    by_name = [{"Name": "name", "Values": [term.name]}] if term.name else []
    return [*by_name, *tag_filters(term.tags)]


def _owners(term: SelectorTerm) -> list[str]:
    if term.owner:
        return [term.owner]
    # A name can be given to an image by anyone; only our own and Amazon's are trusted unasked.
    return ["self", "amazon"] if term.name else []


def described(terms: Iterable[SelectorTerm]) -> str:
    """Write selector terms for a message to a person."""
    return "; ".join(", ".join(_words(term)) or "a term that names nothing" for term in terms)


def _words(term: SelectorTerm) -> Iterator[str]:
    named: Mapping[str, str] = {
        "alias": term.alias,
        "id": term.id,
        "name": term.name,
        "owner": term.owner,
        "ssmParameter": term.ssm_parameter,
        "ownerID": term.owner_id,
    }
    yield from (f"{key} {value}" for key, value in named.items() if value)
    yield from (f"tag {key}={value}" for key, value in sorted(term.tags.items()))
