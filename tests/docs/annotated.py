"""The page of annotated manifests: every field with its meaning, its default and an example."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from controller.apis.crds import DEFINITIONS

ALTERNATIVES = "joiner.dev/alternatives"
WIDTH = 100

HEAD = """\
# Annotated manifests

Each manifest has all fields of its kind, with meaning, default and an example. Copy the lines that
you need. A line that begins with `# or:` excludes the line above it. [Custom
resources](crds.md) has the same fields as tables, with their status.

`make reference` renders this page from `controller/apis/crds` and `tests/docs/annotated.yaml`.
Tests compare them, and check the manifests against the CRDs.
"""

EXAMPLES = Path(__file__).parent / "annotated.yaml"


def examples() -> list[dict[str, Any]]:
    """Return the manifests, with their alternatives."""
    return list(yaml.safe_load_all(EXAMPLES.read_text()))


def spec_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the schema of the spec of each kind."""
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
            "properties"
        ]["spec"]
        for crd in (define() for define in DEFINITIONS)
    }


def page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(_manifest(wire) for wire in examples())


def _manifest(wire: dict[str, Any]) -> str:
    kind = wire["kind"]
    schema = spec_schemas()[kind]
    head = yaml.safe_dump({k: wire[k] for k in ("apiVersion", "kind", "metadata")}, sort_keys=False)
    others: dict[str, list[Any]] = {}
    for alternative in wire.get(ALTERNATIVES, ()):
        for name, value in alternative.items():
            others.setdefault(name, []).append(value)
    body = "\n".join(_fields(schema, wire["spec"], others, "  "))
    return f"\n## {kind}\n\n```yaml\n{head}spec:\n{body}\n```\n"


def _fields(
    schema: Mapping[str, Any], value: Mapping[str, Any], others: Mapping[str, Any], indent: str
) -> Iterator[str]:
    """Yield the lines of an object's fields, in the order of the schema."""
    for name, field in schema["properties"].items():
        if name not in value and name not in others:
            continue
        yield from _comment(field, indent)
        if name in value:
            yield from _field(name, field, value[name], indent)
        for other in others.get(name, ()):
            yield f"{indent}# or: {_inline({name: other})}"


def _comment(field: Mapping[str, Any], indent: str) -> Iterator[str]:
    text = field.get("description", "")
    if values := field.get("enum"):
        text += f" One of {', '.join(map(str, values))}."
    if "default" in field:
        text += f" Default: {_inline(field['default'])}."
    lead = f"{indent}# "
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False
    )


def _field(name: str, field: Mapping[str, Any], value: Any, indent: str) -> Iterator[str]:
    items = field.get("items", {})
    if isinstance(value, dict) and "properties" in field:
        yield f"{indent}{name}:"
        yield from _fields(field, value, {}, f"{indent}  ")
    elif isinstance(value, list) and "properties" in items:
        yield f"{indent}{name}:"
        for number, item in enumerate(value):
            # The fields of a list's items are explained once, at the first.
            lines = list(_fields(items, item, {}, f"{indent}    "))
            shown = lines if number == 0 else [x for x in lines if not x.lstrip().startswith("#")]
            first = next(i for i, line in enumerate(shown) if not line.lstrip().startswith("#"))
            shown[first] = f"{indent}  - {shown[first].lstrip()}"
            yield from shown
    elif isinstance(value, str) and "\n" in value:
        yield f"{indent}{name}: |"
        yield from (f"{indent}  {line}" for line in value.splitlines())
    else:
        yield f"{indent}{_inline({name: value})}"


def _inline(value: Any) -> str:
    """Return the value on one line; a map with one key as `key: value`."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        return f"{name}: {_inline(inner) if not isinstance(inner, dict) else _flow(inner)}"
    return _flow(value)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()
