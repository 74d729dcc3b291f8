"""Runs of the program that together create every type of AWS resource that it knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.infra.test_cluster import CONFIGURED, KEY, ON_FARGATE, made
from tests.infra.test_program import Made, standard

IN_AN_EXISTING_CLUSTER: tuple[dict[str, str], ...] = (
    {},
    {
        "settings": '{"ENABLE_ZONAL_SHIFT": "true"}',
        "instanceProfiles": "managed",
        "imageParameters": "/golden/*",
        "podIdentityAgent": "create",
        "queueKey": KEY,
        "windowsNodes": "true",
        "clusterTags": "true",
    },
)
IN_A_CREATED_CLUSTER: tuple[dict[str, str], ...] = (
    {},
    CONFIGURED | {"ipFamily": "ipv6", "windowsNodes": "true", "natGateways": "zonal"},
    ON_FARGATE,
)


def runs() -> Iterator[Made]:
    """Yield what each run of the program asks for, in an empty account."""
    yield from (standard(**settings) for settings in IN_AN_EXISTING_CLUSTER)
    yield from (made(**settings) for settings in IN_A_CREATED_CLUSTER)


def resources() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the AWS resources of all runs: type, name and inputs."""
    for run in runs():
        yield from (each for each in run.resources if each[0].startswith("aws:"))


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the policy documents of all runs, each with the name of its resource."""
    for kind, name, inputs in resources():
        for value in inputs.values():
            if isinstance(value, str) and value.startswith("{") and '"Statement"' in value:
                yield f"{kind.rpartition(':')[2]} {name}", json.loads(value)
