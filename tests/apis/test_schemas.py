"""The schemas of the custom resources: rendered, complete, and consistent with the types."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.apis import crds, kinds
from controller.apis.kubernetes.meta import Wire

COMMITTED = Path(__file__).parents[2] / "crds"
OURS = (
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.NODE_OVERLAY,
    kinds.CAPACITY_BUFFER,
    kinds.EC2_NODE_CLASS,
    kinds.DISRUPTION,
)
SHARED = ("SelectorTerms[].", "requirements[].minValues", "spec.resources.")
"""Where one type serves several schemas, each of which has some of its fields."""


def definition_of(kind: kinds.Kind[Any]) -> dict[str, Any]:
    return next(
        crd
        for crd in (define() for define in crds.DEFINITIONS)
        if crd["spec"]["names"]["kind"] == kind.name
    )


def schema_of(kind: kinds.Kind[Any]) -> dict[str, Any]:
    version = definition_of(kind)["spec"]["versions"][0]
    return dict(version["schema"]["openAPIV3Schema"])


def test_the_committed_crds_equal_those_rendered_from_the_types() -> None:
    committed = {path.name: path.read_text() for path in COMMITTED.glob("*.yaml")}

    assert committed == crds.render(), "run `python -m controller.apis.crds`"


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_crd_has_the_names_with_which_the_controller_requests_it(kind: kinds.Kind[Any]) -> None:
    spec = definition_of(kind)["spec"]

    assert definition_of(kind)["metadata"]["name"] == f"{kind.plural}.{kind.group}"
    assert spec["names"]["plural"] == kind.plural
    assert spec["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
    assert f"{spec['group']}/{spec['versions'][0]['name']}" == kind.api_version


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_field_the_controller_reads_is_in_the_schema(kind: kinds.Kind[Any]) -> None:
    missing = [
        path
        for part in ("spec", "status")
        for path in _missing(_type_of(kind.type, part), schema_of(kind)["properties"][part], part)
    ]

    assert [path for path in missing if not any(part in path for part in SHARED)] == []


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_default_in_the_schema_is_the_default_in_the_type(kind: kinds.Kind[Any]) -> None:
    spec = schema_of(kind)["properties"]["spec"]

    differences = list(_differences(_type_of(kind.type, "spec"), spec, "spec"))

    assert differences == []


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_field_has_a_description(kind: kinds.Kind[Any]) -> None:
    schema = schema_of(kind)

    assert list(_silent(schema["properties"]["spec"], "spec")) == []


@pytest.mark.parametrize("sample", sorted(COMMITTED.glob("samples/*.yaml")), ids=lambda p: p.stem)
def test_a_sample_starts_with_its_purpose_and_decodes(sample: Path) -> None:
    text = sample.read_text()
    by_name = {kind.name: kind for kind in OURS}

    assert text.startswith("# ")
    for wire in yaml.safe_load_all(text):
        if wire["kind"] in by_name:
            assert msgspec.convert(wire, by_name[wire["kind"]].type).spec


def _type_of(kind: type[Wire], field: str) -> type[Wire]:
    return typing.cast("type[Wire]", typing.get_type_hints(kind)[field])


def _children(kind: type[Wire]) -> typing.Iterator[tuple[msgspec.structs.FieldInfo, Any, bool]]:
    """Yield each field, the wire type below it if there is one, and whether it is a list."""
    for field in msgspec.structs.fields(kind):
        members = [field.type, *typing.get_args(field.type)]
        wires = [m for m in members if isinstance(m, type) and issubclass(m, Wire)]
        yield field, wires[0] if wires else None, typing.get_origin(field.type) is list


def _missing(kind: type[Wire], schema: dict[str, Any], path: str) -> typing.Iterator[str]:
    for field, child, is_list in _children(kind):
        name = field.encode_name
        below = schema.get("properties", {}).get(name)
        if below is None:
            yield f"{path}.{name}"
        elif child is not None:
            down = f"{path}.{name}[]" if is_list else f"{path}.{name}"
            yield from _missing(child, below["items"] if is_list else below, down)


def _differences(kind: type[Wire], schema: dict[str, Any], path: str) -> typing.Iterator[str]:
    for field, child, is_list in _children(kind):
        name = field.encode_name
        below = schema["properties"].get(name)
        if below is None:
            continue
        if "default" in below:
            assumed = _decoded(field)
            filled = msgspec.convert(below["default"], field.type)
            if filled != assumed:
                yield f"{path}.{name}: {filled!r} is filled in, {assumed!r} is assumed"
        if child is not None:
            yield from _differences(child, below["items"] if is_list else below, f"{path}.{name}")


def _decoded(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _silent(schema: dict[str, Any], path: str) -> typing.Iterator[str]:
    if not schema.get("description"):
        yield path
    for name, below in schema.get("properties", {}).items():
        yield from _silent(below, f"{path}.{name}")
    if "properties" in schema.get("items", {}):
        yield from _silent(schema["items"], f"{path}[]")
