"""How soon a cluster uses a new AMI of an alias."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass, EC2NodeClassSpec, SelectorTerm
from controller.apis.kubernetes.meta import ObjectMeta
from controller.aws.nodeclass.amis import AMIs
from controller.options import Options
from tests.aws.builders import Clock

HOUR = 3600.0
KUBERNETES = "1.37"


class Published:
    """SSM with one parameter for every path, and EC2 with the AMIs of these parameters."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.current = "ami-1"
        self.deprecated: set[str] = set()
        self.deregistered: set[str] = set()
        self.reads = 0

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.reads += 1
        return {"Parameter": {"Value": self.current}}

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        (asked,) = (f["Values"] for f in parameters["Filters"] if f["Name"] == "image-id")
        return [self._image(image) for image in asked if image not in self.deregistered]

    def _image(self, image_id: str) -> dict[str, Any]:
        image = {"ImageId": image_id, "Name": image_id, "Architecture": "x86_64"}
        if image_id in self.deprecated:
            image["DeprecationTime"] = "2020-01-01T00:00:00.000Z"
        return image

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def shutdown(self) -> None: ...


class Cluster:
    """Resolves an EC2NodeClass of one cluster at different times."""

    def __init__(self, published: Published, term: SelectorTerm, **periods: float) -> None:
        self._clock = Clock()
        self._amis = AMIs(published, clock=self._clock, **periods)
        spec = EC2NodeClassSpec(ami_family="AL2023", ami_selector_terms=[term])
        self._class = EC2NodeClass(metadata=ObjectMeta(name="default"), spec=spec)

    async def images(self, *, after: float = 0.0) -> set[str]:
        self._clock.advance(after)
        return {image.id for image in await self._amis.find(self._class, KUBERNETES)}


LATEST = SelectorTerm(alias="al2023@latest")


@pytest.fixture
def published() -> Published:
    return Published()


def test_the_parameters_of_an_alias_are_cached_for_a_day() -> None:
    assert Options(cluster_name="prod").ssm_refresh_interval.total_seconds() == 24 * HOUR


async def test_a_new_ami_reaches_clusters_at_different_times(
    published: Published,
) -> None:
    cluster = Cluster(published, LATEST)
    assert await cluster.images() == {"ami-1"}

    published.current = "ami-2"
    assert await cluster.images(after=23.9 * HOUR) == {"ami-1"}
    assert await cluster.images(after=0.2 * HOUR) == {"ami-2"}


async def test_a_setting_bounds_the_time_until_a_new_ami_is_used(published: Published) -> None:
    cluster = Cluster(published, LATEST, alias_period=300.0)
    await cluster.images()

    published.current = "ami-2"
    assert await cluster.images(after=299) == {"ami-1"}
    assert await cluster.images(after=61) == {"ami-2"}


async def test_an_ami_that_is_deprecated_is_replaced_within_half_an_hour(
    published: Published,
) -> None:
    cluster = Cluster(published, LATEST)
    await cluster.images()

    published.current = "ami-2"
    published.deprecated.add("ami-1")
    assert await cluster.images(after=0.4 * HOUR) == {"ami-1"}
    await cluster.images(after=0.1 * HOUR)
    assert await cluster.images(after=61) == {"ami-2"}


async def test_an_alias_whose_newest_ami_is_deprecated_is_read_every_half_hour(
    published: Published,
) -> None:
    published.deprecated.add("ami-1")
    cluster = Cluster(published, LATEST)
    await cluster.images()
    once = published.reads

    for _ in range(60):
        await cluster.images(after=61)

    assert published.reads == 2 * once


async def test_a_deregistered_ami_is_replaced_within_two_minutes(published: Published) -> None:
    cluster = Cluster(published, LATEST)
    await cluster.images()

    published.current = "ami-2"
    published.deregistered.add("ami-1")
    assert await cluster.images(after=61) == set()
    assert await cluster.images(after=61) == {"ami-2"}


async def test_a_pinned_version_is_not_read_again_because_it_is_deprecated(
    published: Published,
) -> None:
    cluster = Cluster(published, SelectorTerm(alias="al2023@v20261015"))
    await cluster.images()
    once = published.reads

    published.deprecated.add("ami-1")
    for _ in range(60):
        assert await cluster.images(after=61) == {"ami-1"}

    assert published.reads == once


async def test_a_parameter_that_a_class_names_is_cached_for_five_minutes(
    published: Published,
) -> None:
    cluster = Cluster(published, SelectorTerm(ssm_parameter="/team/image"))
    await cluster.images()

    published.current = "ami-2"
    assert await cluster.images(after=299) == {"ami-1"}
    assert await cluster.images(after=61) == {"ami-2"}
