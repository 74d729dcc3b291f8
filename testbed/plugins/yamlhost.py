"""The language host of YAML programs, as far as components of packages need it.

It knows `type` and `properties` of a resource, which must belong to one of the project's `packages`
and be a component, and `outputs` that name one of its outputs (`${resource.output}`). YAML needs no
SDK, so there is nothing to generate for a package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulumi
import yaml
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from testbed.plugins import languageexec
from testbed.plugins.languagehost import LanguageHost, request_fields
from testbed.plugins.lifetime import new_server, serve

REFERENCE: Final = re.compile(r"\$\{(\w+)\.(\w+)\}")


class YamlHost(LanguageHost):
    """Answers the engine's language-runtime calls for YAML."""

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:
        yield from ()

    def GeneratePackage(self, request: Any, context: Any) -> Any:
        return language_pb2.GeneratePackageResponse()

    def Link(self, request: Any, context: Any) -> Any:
        return language_pb2.LinkResponse()

    def _run(self, request: Any) -> str | None:
        document = yaml.safe_load((Path(request.info.root_directory) / "Pulumi.yaml").read_text())
        return languageexec.run(request_fields(request), partial(declare, document))


def declare(document: Mapping[str, Any]) -> None:
    """Create the resources of a program, and export its outputs."""
    outputs = {key: _referenced(text) for key, text in document.get("outputs", {}).items()}
    made = {}
    for name, resource in document["resources"].items():
        awaited = [output for owner, output in outputs.values() if owner == name]
        props = {**resource["properties"], **dict.fromkeys(awaited)}
        made[name] = pulumi.ComponentResource(resource["type"], name, props, remote=True)
    for key, (name, output) in outputs.items():
        pulumi.export(key, getattr(made[name], output))


def _referenced(text: str) -> tuple[str, str]:
    """Return resource and output of a reference. Raises `RunError` if the text is none."""
    reference = REFERENCE.fullmatch(text)
    if reference is None:
        raise pulumi.RunError(f"{text} cannot be used here: allowed is ${{resource.output}}")
    return reference[1], reference[2]


if __name__ == "__main__":
    server = new_server()
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(YamlHost(), server)
    serve(server)
