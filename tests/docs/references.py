"""Render the pages of docs/reference that are made from code: `make reference`."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from controller.apis.crds import DEFINITIONS
from controller.apis.meanings import meanings
from controller.options import SETTINGS, Setting, describe_allowed, text_of
from infra.config.table import table as stack_settings
from testbed.environment import CHECKOUT
from tests.docs import annotated, instancetypes, messages, metrics, pictures

LABELS = Path(__file__).parent / "labels.yaml"

SETTINGS_HEAD = """\
# Settings of the controller

Names and defaults are Karpenter's where Karpenter has the same setting. `joiner run --help` prints
this list. `make reference` renders this page from `controller/options.py`; a test fails on any
difference.

## How do I set one?

| where | example |
|---|---|
| the stack | `pulumi config set --path joiner:settings.BATCH_IDLE_DURATION 2s` |
| the Deployment | the environment variable `BATCH_IDLE_DURATION=2s` |
| the command line | `--batch-idle-duration=2s`, which overrides the environment |

An empty value means the default. An invalid value ends the program with the name, the value and
what is allowed.

## Which settings are there?

"""

GATES_HEAD = """
## Which feature gates are there?

A gate that is not named has its default. An unknown gate is ignored, as in Karpenter, and the log
names it.

"""

LABELS_HEAD = """\
# Annotations, labels, taints, finalizers and tags

Names that begin with `joiner.dev` are Joiner's. All others are those of Karpenter, Kubernetes or
AWS and mean the same there. `tests/docs/labels.yaml` is the source of this page. `make reference`
renders it, and a test compares it with the code.
"""

CRDS_HEAD = """\
# Custom resources

`kubectl explain nodepool.spec` shows the same on a cluster. The CRDs are in `crds/`, and examples
in `crds/samples/`. `make reference` renders this page from `controller/apis/crds`; a test fails on
any difference.
"""


def settings_page() -> str:
    """Return the page of the controller's settings as Markdown."""
    rows = [(f"`{s.variable}`", _default(s), describe_allowed(s.type), s.doc) for s in SETTINGS]
    parts = [
        SETTINGS_HEAD,
        messages.table(("variable", "default", "allowed", "meaning"), rows),
        GATES_HEAD,
    ]
    gates = [
        (f"`{setting.variable}`", f"`{name}`", *rest)
        for setting in SETTINGS
        if dataclasses.is_dataclass(setting.type)
        for name, *rest in _gates(typing.cast("type[Any]", setting.type))
    ]
    return "".join([*parts, messages.table(("setting", "gate", "default", "meaning"), gates)])


def _default(setting: Setting) -> str:
    if setting.default is dataclasses.MISSING:
        return "required"
    text = text_of(setting.default)
    return f"`{text}`" if text else ""


def _gates(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    described = dict(meanings(kind))
    for gate in dataclasses.fields(kind):
        name = gate.metadata.get("name", gate.name.title().replace("_", ""))
        yield name, f"`{text_of(gate.default)}`", described[gate.name]


def known_labels() -> Mapping[str, Mapping[str, Any]]:
    """Return the contents of labels.yaml: the meaning of each name, by section."""
    loaded: Mapping[str, Mapping[str, Any]] = yaml.safe_load(LABELS.read_text())
    return loaded


def labels_page() -> str:
    """Return the page of annotations, labels, taints, finalizers and tags as Markdown."""
    sections = dict(known_labels())
    annotations = sections.pop("annotations")
    rows = [
        (f"`{name}`", entry["object"], entry["set by"], entry["meaning"])
        for name, entry in annotations.items()
    ]
    parts = [
        LABELS_HEAD,
        "\n## Annotations\n\n",
        messages.table(("annotation", "on", "set by", "meaning"), rows),
    ]
    for title, names in sections.items():
        named = [(f"`{name}`", meaning) for name, meaning in names.items()]
        parts += [f"\n## {title.title()}\n\n", messages.table(("name", "meaning"), named)]
    return "".join(parts)


def crds_page() -> str:
    """Return the page of the custom resources as Markdown."""
    return CRDS_HEAD + "".join(_kind(define()) for define in DEFINITIONS)


def _kind(definition: Mapping[str, Any]) -> str:
    spec = definition["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = [f"`kubectl get {spec['names']['plural']}`"]
    if short := [f"`{name}`" for name in spec["names"].get("shortNames", ())]:
        names.append(f"short name {' or '.join(short)}")
    fields = [
        (f"`{path}`", _type(field), _text(field.get("default")), field.get("description", ""))
        for path, field in _fields(schema, "")
        if path.startswith(("spec", "status"))
    ]
    return (
        f"\n## {spec['names']['kind']}\n\n"
        f"`{spec['group']}/{version['name']}`, {spec['scope']}; {', '.join(names)}.\n\n"
        f"{textwrap.fill(schema['description'], 118)}\n\n"
        f"{messages.table(('field', 'type', 'default', 'meaning'), fields)}"
    )


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and schema of each field below a schema; `[]` marks the items of a list."""
    for name, field in schema.get("properties", {}).items():
        if prefix.endswith("conditions[]."):
            return  # the same for every kind of Kubernetes
        path = f"{prefix}{name}"
        yield path, field
        yield from _fields(field, f"{path}.")
        if "items" in field:
            yield from _fields(field["items"], f"{path}[].")


def _type(field: Mapping[str, Any]) -> str:
    if values := field.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        items = _type(field["items"])
        return f"list of {items}" if "enum" in field["items"] else f"list of {items}s"
    if field.get("type") == "object" and "additionalProperties" in field:
        return "map"
    return str(field["type"])


def _text(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": stack_settings,
    "controller.md": settings_page,
    "messages.md": messages.page,
    "metrics.md": metrics.page,
    "labels.md": labels_page,
    "crds.md": crds_page,
    "annotated.md": annotated.page,
    "instance-types.md": instancetypes.page,
}
"""Every rendered page, by its name below docs/reference."""

FILES: Mapping[Path, Callable[[], str]] = {
    **{Path("docs/reference") / name: page for name, page in PAGES.items()},
    Path("docs/images/constraints.svg"): pictures.picture,
}
"""Every rendered file, by its path in the checkout."""


if __name__ == "__main__":
    for path, content in FILES.items():
        (CHECKOUT / path).write_text(content())
