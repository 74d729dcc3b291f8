"""The six custom resources as the API server defines them: schemas, defaults, rules and columns.

`python -m controller.apis.crds` renders them into `crds/`, from where they are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from controller.apis.crds.capacitybuffers import capacity_buffer
from controller.apis.crds.disruptions import disruption
from controller.apis.crds.ec2nodeclasses import ec2_node_class
from controller.apis.crds.nodeclaims import node_claim
from controller.apis.crds.nodeoverlays import node_overlay
from controller.apis.crds.nodepools import node_pool

DEFINITIONS: tuple[Callable[[], dict[str, Any]], ...] = (
    node_pool,
    node_claim,
    node_overlay,
    capacity_buffer,
    ec2_node_class,
    disruption,
)

_HEAD = "# Rendered by `python -m controller.apis.crds`; change the schema there.\n"


def render() -> dict[str, str]:
    """Return each CustomResourceDefinition as YAML, by file name."""
    return {_file_name(crd): _yaml(crd) for crd in (define() for define in DEFINITIONS)}


def _file_name(crd: dict[str, Any]) -> str:
    plural, _, group = crd["metadata"]["name"].partition(".")
    return f"{group}_{plural}.yaml"


class _Plain(yaml.SafeDumper):
    """Writes shared values in full, because many readers do not support YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(crd: dict[str, Any]) -> str:
    return _HEAD + yaml.dump(crd, Dumper=_Plain, sort_keys=False, width=100)
