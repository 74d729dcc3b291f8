"""In observe mode, Joiner reports offerings and makes only read calls to AWS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from controller.aws.provider import AWSCloudProvider
from controller.aws.session import READS
from controller.options import Options
from tests.aws.builders import make_node_class
from tests.aws.conftest import REGION, Region, RememberingSession


async def test_a_read_only_provider_lists_the_same_types_and_writes_nothing(
    region: Region,
    options: Options,
    start: Callable[[], AWSCloudProvider],
    families: Collection[str],
) -> None:
    acting = start()
    await acting.start()
    resolved = await acting.resolve(make_node_class(), now=datetime.now(UTC))
    sold = await acting.instance_types(resolved)
    region.control.clear_calls()

    observing = AWSCloudProvider(
        dataclasses.replace(options, disruption_mode="observe"),
        # Without a catalogue, it makes every call itself.
        aws=RememberingSession(region=REGION, attempts=1, families=families),
    )
    await observing.start()
    assert await observing.instance_types(resolved) == sold

    asked = {call for calls in region.control.calls().values() for call in calls}
    reads = tuple(read.rstrip("_").capitalize() for read in READS)
    assert asked
    assert not [call for call in asked if not call.partition(":")[2].startswith(reads)]
