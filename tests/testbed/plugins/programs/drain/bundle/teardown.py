"""A dynamic provider in Python, in its own package."""

import time
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

Properties = dict[str, Any]


class DrainProvider(ResourceProvider):
    """Keeps a file while the resource exists, and takes time to delete it."""

    def create(self, props: Properties) -> CreateResult:
        Path(props["file"]).write_text(props["text"])
        return CreateResult(props["file"], props)

    def diff(self, _id: str, _olds: Properties, _news: Properties) -> DiffResult:
        return DiffResult(changes=_olds["text"] != _news["text"])

    def update(self, _id: str, _olds: Properties, _news: Properties) -> UpdateResult:
        Path(_id).write_text(_news["text"])
        return UpdateResult(_news)

    def delete(self, _id: str, _props: Properties) -> None:
        gate = Path(_props["gate"])
        print("3 nodes left", flush=True)
        while not gate.exists():  # the test creates it once it has read the line above
            time.sleep(0.05)
        print("no node left", flush=True)
        Path(_id).unlink()


class Drain(Resource):
    """A resource of the provider above."""

    text: pulumi.Output[str]

    def __init__(self, name: str, file: str, gate: str, text: str) -> None:
        super().__init__(DrainProvider(), name, {"file": file, "gate": gate, "text": text})
