"""AMIs: which ones an EC2NodeClass selects, and which instance types each supports.

An alias names an AMI family and a version. SSM parameters that AWS publishes resolve it to AMI IDs,
one per architecture and variant (standard, NVIDIA, Neuron). Other selector terms are queries to
EC2.
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
from controller.apis.karpenter.ec2nodeclass import AMIStatus, EC2NodeClass, SelectorTerm
from controller.apis.kubernetes.taints import Requirement
from controller.aws.bootstrap.families import Family, alias_of, family_of
from controller.aws.errors import AwsError
from controller.aws.instancetypes.catalogue import ARCHITECTURES, GPU_COUNT
from controller.aws.selectors import tag_filters
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

ALIAS_PERIOD = 24 * 3600.0
"""Seconds for which the SSM parameters of an alias are cached; a setting overrides it.

With this period, a new AMI reaches the clusters over a day instead of all of them at once.
"""

CUSTOM_PERIOD = 300.0
"""Seconds for which a parameter that an EC2NodeClass names itself is cached."""

DEPRECATED_PERIOD = 1800.0
"""Seconds after which a `latest` alias's parameter is read again if its AMI is deprecated."""

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
    """An SSM parameter that holds an AMI ID, with the requirements of each variant it serves.

    `pinned` is whether the alias names a version other than `latest`.
    """

    path: str
    variants: tuple[tuple[Requirement, ...], ...]
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An AMI as EC2 describes it."""

    id: str
    name: str
    architecture: str
    created: str
    deprecated: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """The AMI ID in a parameter, and when it was read, in seconds of the clock."""

    image_id: str
    at: float


class UnsupportedAliasError(CloudProviderError):
    """There are no AMIs of the alias's family for the cluster's Kubernetes version."""

    reason = "UnsupportedAlias"


def parameters(family: Family, version: str, kubernetes: str) -> list[Parameter]:
    """Return the SSM parameters of an alias such as `al2023@latest`, for Kubernetes `1.37`.

    Raises:
        UnsupportedAliasError: the family has no AMIs for this Kubernetes version.

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


@dataclass
class AMIs:
    """Finds AMIs; EC2NodeClasses with the same terms share one cached response."""

    aws: Aws
    period: float = 60.0
    alias_period: float = ALIAS_PERIOD
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Keys are the path and the seconds for which the value is cached.
        self._values: TLRUCache[tuple[str, float], _Value, float] = TLRUCache(
            math.inf, lambda key, _, now: now + key[1], self.clock
        )
        self._selected: TTLCache[object, tuple[AMIStatus, ...]] = TTLCache(
            math.inf, self.period, self.clock
        )
        self._lock = asyncio.Lock()

    async def find(self, node_class: EC2NodeClass, kubernetes: str) -> tuple[AMIStatus, ...]:
        """Return the AMIs that the EC2NodeClass selects, newest first; one per set of requirements.

        `kubernetes` is the cluster's version, such as `1.37`.

        Raises:
            UnsupportedAliasError: the alias's family has no AMIs for this Kubernetes version.

        """
        terms = node_class.spec.ami_selector_terms
        key = (repr(terms), family_of(node_class).name, kubernetes)
        async with self._lock:
            if images := self._selected.get(key):
                return images
            served = [pair async for pair in self._images(node_class, kubernetes)]
            images = self._selected[key] = tuple(best_amis(served))
            return images

    async def _images(self, node_class: EC2NodeClass, kubernetes: str) -> Any:
        """Yield each AMI with the requirements of the instance types that it supports."""
        alias = alias_of(node_class)
        if alias is not None:
            async for pair in self._of_alias(*alias, kubernetes):
                yield pair
            return
        async for image in self._of_terms(node_class.spec.ami_selector_terms):
            yield image, (_runs_on(image),)

    async def _of_alias(self, family: Family, version: str, kubernetes: str) -> Any:
        ids: dict[str, list[tuple[Requirement, ...]]] = {}
        needed = parameters(family, version, kubernetes)
        values = await asyncio.gather(*(self._value(p.path, self._period_of(p)) for p in needed))
        for parameter, image_id in zip(needed, values, strict=True):
            if image_id:
                ids.setdefault(image_id, []).extend(parameter.variants)
        if not ids:
            return
        images = await self._by_id(sorted(ids))
        living = {image.id: not image.deprecated for image in images}
        for parameter in needed:
            self._invalidate(parameter, living)
        for image in images:
            for variant in ids[image.id]:
                yield image, (_runs_on(image), *variant)

    async def _of_terms(self, terms: Sequence[SelectorTerm]) -> Any:
        ids = {term.id for term in terms if term.id}
        for term in terms:
            if term.ssm_parameter:
                ids.add(await self._value(term.ssm_parameter, CUSTOM_PERIOD))
        ids.discard("")
        if ids:
            for image in await self._by_id(sorted(ids)):
                yield image
        for term in terms:
            if not term.id and not term.ssm_parameter and (filters := _filters(term)):
                for image in await self._describe(filters, _owners(term)):
                    yield image

    async def _by_id(self, ids: list[str]) -> list[Image]:
        # A filter, unlike the parameter ImageIds, does not fail if an AMI no longer exists.
        return await self._describe([{"Name": "image-id", "Values": ids}], [])

    def _period_of(self, parameter: Parameter) -> float:
        return ALIAS_PERIOD if parameter.pinned else self.alias_period

    def _invalidate(self, parameter: Parameter, living: Mapping[str, bool]) -> None:
        """Expire a `latest` parameter whose AMI is deprecated or no longer exists.

        AWS deprecates an AMI that has a fault, so nodes need the next AMI before the cache expires.
        """
        key = (parameter.path, self._period_of(parameter))
        known = self._values.get(key)
        if known is None or parameter.pinned or living.get(known.image_id):
            return
        is_gone = known.image_id not in living
        if is_gone or self.clock() - known.at >= DEPRECATED_PERIOD:
            del self._values[key]

    async def _value(self, path: str, period: float) -> str:
        """Return a parameter's value, at most `period` seconds old; empty if it does not exist."""
        if known := self._values.get((path, period)):
            return known.image_id
        try:
            response = await self.aws.call("ssm", "get_parameter", Name=path)
        except AwsError as exc:
            if exc.is_not_found:
                return ""
            raise
        value = _Value(str(response["Parameter"]["Value"]), self.clock())
        self._values[path, period] = value
        return value.image_id

    async def _describe(self, filters: list[dict[str, Any]], owners: list[str]) -> list[Image]:
        described = await self.aws.pages(
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


def best_amis(served: Iterable[tuple[Image, tuple[Requirement, ...]]]) -> Iterator[AMIStatus]:
    """Yield the best AMI for each set of requirements, newest first.

    An AMI that is not deprecated is better than a deprecated one, then the newer, then the one
    whose name sorts last.
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
    """Return the EC2 filters of a term; without any, EC2 would return all AMIs."""
    by_name = [{"Name": "name", "Values": [term.name]}] if term.name else []
    return [*by_name, *tag_filters(term.tags)]


def _owners(term: SelectorTerm) -> list[str]:
    if term.owner:
        return [term.owner]
    # Any account can give its AMI any name, so by default only Amazon's and the account's own AMIs
    # are trusted.
    return ["self", "amazon"] if term.name else []
