"""Installs the kinds of `crds/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes
import yaml

RENDERED = Path(__file__).resolve().parent.parent / "crds"


@dataclass(frozen=True, kw_only=True)
class CustomResourcesArgs:
    """Files with one CustomResourceDefinition each."""

    files: Sequence[Path]


class CustomResources(pulumi.ComponentResource):
    """The kinds that users write and the controller reads."""

    def __init__(
        self, name: str, args: CustomResourcesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:CustomResources", name, None, opts)
        self.definitions = [self._definition(name, path) for path in args.files]
        self.register_outputs({})

    def _definition(
        self, name: str, path: Path
    ) -> kubernetes.apiextensions.v1.CustomResourceDefinition:
        wire = yaml.safe_load(path.read_text())
        return kubernetes.apiextensions.v1.CustomResourceDefinition(
            f"{name}-{wire['metadata']['name']}",
            metadata=wire["metadata"],
            spec=wire["spec"],
            opts=pulumi.ResourceOptions(parent=self),
        )


def rendered() -> list[Path]:
    """Return the files of `crds/`, in one order."""
    return sorted(RENDERED.glob("*.yaml"))
