"""NodePools and EC2NodeClasses of a stack, from a folder of YAML files or from typed Python.

In YAML, the stack replaces the placeholders `${CLUSTER_NAME}`, `${INSTANCE_PROFILE}`,
`${NODE_ROLE}`, `${WINDOWS_INSTANCE_PROFILE}`, `${WINDOWS_NODE_ROLE}` and `${DISCOVERY_TAG}`.
Unknown placeholders are left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pulumi
import pulumi_kubernetes as kubernetes
import yaml

from controller.apis.karpenter.defaultpool import DEFAULT_NODE_POOL
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass, EC2NodeClassSpec, SelectorTerm
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.validation import overlay_problems, problems
from controller.apis.kinds import (
    CAPACITY_BUFFER,
    EC2_NODE_CLASS,
    NODE_OVERLAY,
    NODE_POOL,
    POD_TEMPLATE,
    Kind,
)
from controller.apis.kubernetes.meta import ObjectMeta, to_wire
from controller.options import FeatureGates, gate_disabled
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import CLUSTER_ERRORS, ApiError, ClusterApi, ClusterLocation, Objects
from infra.config.forms import ConfigError
from infra.guards.impact import Plan, expected_impact
from infra.guards.poolowners import PoolOwners
from infra.guards.poolreadiness import never_ready, zones_of
from infra.lifecycle.destroying import is_destroying
from infra.lifecycle.fieldmanager import applied_by_us, take_over_fields
from infra.lifecycle.teardown import STACK_ANNOTATION
from infra.manifestchecks import SUCCESSORS, schema_faults
from infra.state import recorded_resources

Wire = dict[str, Any]

KINDS = {
    kind.name: kind
    for kind in (EC2_NODE_CLASS, NODE_POOL, NODE_OVERLAY, CAPACITY_BUFFER, POD_TEMPLATE)
}
"""The kinds that a stack may contain, by name. A CapacityBuffer refers to a PodTemplate."""

KUSTOMIZATION = "kustomize.config.k8s.io/"
"""API group of kustomize's own files. They are skipped: a stack reads every file of the folder."""

CHECKED_TWICE = frozenset({"requirements", "labels", "taints", "startupTaints"})
"""Fields whose form the check at run time checks too, with plainer messages than the CRD."""

GARBAGE_COLLECTION = timedelta(minutes=2)
"""How long the garbage collector may take to end a foreground deletion. It discovers a new kind
within 30 s."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
AUTHORITY = "certificate authority"
CLUSTER_NAME = "${CLUSTER_NAME}"
NODE_ROLE = "${NODE_ROLE}"
INSTANCE_PROFILE = "${INSTANCE_PROFILE}"
DISCOVERY_TAG = "${DISCOVERY_TAG}"
WINDOWS_NODE_ROLE = "${WINDOWS_NODE_ROLE}"
WINDOWS_INSTANCE_PROFILE = "${WINDOWS_INSTANCE_PROFILE}"


@dataclass(frozen=True, kw_only=True)
class NodePoolsArgs:
    """The objects of the stack, and the values of their placeholders."""

    cluster: EksCluster
    manifests: Sequence[Wire]
    variables: Mapping[str, pulumi.Input[str]]
    stack: str
    """organization/project/stack. `pulumi destroy` recognizes its own NodePools by it."""

    delete_timeout: timedelta
    has_controller: bool = False
    """Whether the stack also creates the controller, and deletes it on destroy."""

    after: Sequence[pulumi.Resource] = field(default_factory=tuple)


class NodePools(pulumi.ComponentResource):
    """Creates EC2NodeClasses and PodTemplates, then the objects that refer to them."""

    def __init__(
        self, name: str, args: NodePoolsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodePools", name, None, opts)
        self._name, self._args = name, args
        location = args.cluster.known_location
        if location is not None:
            take_over_fields(
                location,
                map(_path, args.manifests),
                is_ours=lambda wire: _stack_of(wire) == args.stack,
            )
        first = (EC2_NODE_CLASS.name, POD_TEMPLATE.name)
        classes = [w for w in args.manifests if w["kind"] in first]
        others = [w for w in args.manifests if w["kind"] not in first]
        made = [self._object(wire, args.after) for wire in classes]
        made += [self._object(wire, [*args.after, *made]) for wire in others]
        paths = list(map(_path, args.manifests))
        pulumi.Output.all(
            created=pulumi.Output.all(*(each.id for each in made)), **args.cluster.location
        ).apply(lambda known: _take_over_created(known, paths))
        PoolOwners(
            f"{name}-owners",
            args.cluster,
            [w["metadata"]["name"] for w in others if w["kind"] == NODE_POOL.name],
            stack=args.stack,
            has_controller=args.has_controller,
            opts=pulumi.ResourceOptions(parent=self, depends_on=made),
        )
        if pulumi.runtime.is_dry_run():
            self._report_impact()
        if not is_destroying():
            self._report_missing()
            self._report_never_ready()
        self.register_outputs({})

    def _report_impact(self) -> None:
        """Report in a preview what the change does to running nodes, if the cluster is known."""
        args, location = self._args, self._args.cluster.known_location
        if location is None:
            return

        def report(known: Mapping[str, str]) -> None:
            plan = Plan(
                manifests=[replace_placeholders(wire, known) for wire in args.manifests],
                stack=args.stack,
                certificate_authority=known[AUTHORITY],
                has_controller=args.has_controller,
                is_destroyed=is_destroying(),
            )
            for effect in expected_impact(location, plan):
                report = pulumi.log.warn if effect.terminates else pulumi.log.info
                report(effect.text, self)

        authority = {AUTHORITY: args.cluster.certificate_authority}
        pulumi.Output.all(**args.variables, **authority).apply(report)

    def _report_missing(self) -> None:
        """Warn of objects that the state has and the cluster has not; `up` does not notice."""
        location = self._args.cluster.known_location
        if location is None:
            return
        recorded = recorded_resources()
        expected = [wire for wire in self._args.manifests if self._state_key(wire) in recorded]
        try:
            missing = missing_objects(ClusterApi.find(location), expected)
        except CLUSTER_ERRORS:
            return  # The provider that connects next reports the failure.
        if missing:
            pulumi.log.warn(
                "the state has these objects, but the cluster has not, because an earlier destroy "
                f"began or others deleted them: {', '.join(missing)}. Run `pulumi up --refresh` to "
                "create them again",
                self,
            )

    def _report_never_ready(self) -> None:
        """Warn of NodePools for whose condition Ready `up` would wait in vain."""
        location = self._args.cluster.known_location
        classes: Sequence[Wire] = ()
        with suppress(*CLUSTER_ERRORS):  # the provider that connects next reports the failure
            if location is not None:
                classes = _objects_of(ClusterApi.find(location), EC2_NODE_CLASS)
            for line in never_ready(
                self._args.manifests,
                zones=lambda: zones_of(location) if location is not None else (),
                classes={wire["metadata"]["name"] for wire in classes},
            ):
                pulumi.log.warn(line, self)

    def _state_key(self, wire: Wire) -> tuple[str, str]:
        """Return type and name that an object has in the state."""
        group_version = wire["apiVersion"] if "/" in wire["apiVersion"] else "core/v1"
        return f"kubernetes:{group_version}:{wire['kind']}", f"{self._name}-{_title(wire)}"

    def _object(self, wire: Wire, after: Sequence[pulumi.Resource]) -> pulumi.CustomResource:
        name, metadata = f"{self._name}-{_title(wire)}", _owned_metadata(wire, self._args.stack)
        opts = pulumi.ResourceOptions(
            parent=self,
            depends_on=list(after),
            # The controller's finalizer keeps an EC2NodeClass until its last node is deleted.
            custom_timeouts=pulumi.CustomTimeouts(
                delete=f"{int((self._args.delete_timeout + GARBAGE_COLLECTION).total_seconds())}s"
            ),
        )
        made: pulumi.CustomResource
        if wire["kind"] == POD_TEMPLATE.name:
            template = self._fill_placeholders(wire["template"])
            made = kubernetes.core.v1.PodTemplate(
                name, metadata=metadata, template=template, opts=opts
            )
        else:
            made = kubernetes.apiextensions.CustomResource(
                name,
                api_version=wire["apiVersion"],
                kind=wire["kind"],
                metadata=metadata,
                spec=self._fill_placeholders(wire["spec"]),
                opts=opts,
            )
        return made

    def _fill_placeholders(self, value: Wire) -> pulumi.Output[Any]:
        return pulumi.Output.all(**self._args.variables).apply(
            lambda known: replace_placeholders(value, known)
        )


def _take_over_created(known: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Let the fields of objects that this `up` has created be applied ones."""
    where = {name: value for name, value in known.items() if name != "created"}
    take_over_fields(ClusterLocation(**where), paths)


def missing_objects(cluster: Objects, manifests: Sequence[Wire]) -> list[str]:
    """Return kind and name of each object that the cluster does not have."""
    there = {
        (kind, wire["metadata"]["name"])
        for kind in {wire["kind"] for wire in manifests}
        for wire in _objects_of(cluster, KINDS[kind])
    }
    named = ((wire["kind"], wire["metadata"]["name"]) for wire in manifests)
    return [f"{kind} {name}" for kind, name in named if (kind, name) not in there]


def _objects_of(cluster: Objects, kind: Kind[Any]) -> list[Wire]:
    """Return all objects of a kind; none if its CRD is missing."""
    try:
        return cluster.list(kind.collection)
    except ApiError as exc:
        if exc.status != HTTPStatus.NOT_FOUND:
            raise
        return []


def manifests_in(folder: Path) -> list[Wire]:
    """Return the objects in all YAML files of a folder and its subfolders.

    Raises:
        ConfigError: an object has a kind that is not allowed, is invalid, or is there twice; lists
            every problem with its file.

    """
    by_title: dict[str, tuple[Path, Wire]] = {}
    faults: list[str] = []
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
        try:
            wires = [wire for wire in yaml.safe_load_all(path.read_text()) if wire]
        except (OSError, RecursionError, ValueError, yaml.YAMLError) as exc:
            # Text that is not UTF-8, and invalid numbers and dates, raise ValueError.
            faults.append(f"{path}: not YAML: {exc}")
            continue
        for wire in wires:
            if isinstance(wire, dict) and str(wire.get("apiVersion")).startswith(KUSTOMIZATION):
                continue
            wrong = list(_faults(wire))
            if not wrong:
                first, same = by_title.setdefault(_title(wire), (path, wire))
                if same is not wire:
                    wrong = [f"{_title(wire)} is in {first} too: give one of them another name"]
            faults += [f"{path}: {fault}" for fault in wrong]
    if faults:
        raise ConfigError(*faults)
    return [wire for _, wire in by_title.values()]


def refuse_faulty(manifests: Sequence[Wire]) -> None:
    """Check that all objects are valid, and that no two have the same kind and name.

    Raises:
        ConfigError: lists every problem with its object.

    """
    titles: set[str] = set()
    faults: list[str] = []
    for wire in manifests:
        faults += (wrong := list(_faults(wire)))
        if not wrong and _title(wire) in titles:
            faults.append(f"{_title(wire)} exists twice: give one of them another name")
        elif not wrong:
            titles.add(_title(wire))
    if faults:
        raise ConfigError(*faults)


def refuse_static(manifests: Sequence[Wire], gates: FeatureGates) -> None:
    """Check that the feature gate StaticCapacity is on if a NodePool has `spec.replicas`.

    Raises:
        ConfigError: the gate is off. The NodePools would never be Ready, and `up` waits for that.

    """
    static = [
        wire["metadata"]["name"]
        for wire in manifests
        if wire["kind"] == NODE_POOL.name and wire["spec"].get("replicas") is not None
    ]
    why = gate_disabled("spec.replicas", "StaticCapacity")
    if static and not gates.static_capacity:
        raise ConfigError(*(f"NodePool {name} would never be Ready: {why}" for name in static))


def default_manifests(
    *, by_role: bool = False, tags: Mapping[str, str] | None = None
) -> list[Wire]:
    """Return a default NodePool and EC2NodeClass: types c, m and r, spot and on-demand, amd64.

    Args:
        by_role: whether the EC2NodeClass names the node role, for which the controller looks up or
            creates an instance profile in IAM. Otherwise it names the stack's instance profile, and
            the controller does not call IAM.
        tags: tags of the instances, their volumes and network interfaces.

    """
    here = [SelectorTerm(tags={DISCOVERY_TAG: CLUSTER_NAME})]
    node_class = EC2NodeClass(
        metadata=ObjectMeta(name="default"),
        spec=EC2NodeClassSpec(
            role=NODE_ROLE if by_role else None,
            instance_profile=None if by_role else INSTANCE_PROFILE,
            ami_selector_terms=[SelectorTerm(alias="al2023@latest")],
            subnet_selector_terms=here,
            security_group_selector_terms=here,
            tags=dict(tags) if tags else None,
        ),
    )
    return [manifest(EC2_NODE_CLASS, node_class), manifest(NODE_POOL, DEFAULT_NODE_POOL)]


def manifest(kind: Kind[Any], typed: Any) -> Wire:
    """Return a typed object as a map, as in YAML."""
    wire: Wire = to_wire(typed)
    return {"apiVersion": kind.api_version, "kind": kind.name, **wire}


def replace_placeholders(value: Any, known: Mapping[str, str]) -> Any:
    """Return a value with each known `${NAME}` replaced, in all nested strings and keys."""
    match value:
        case str():
            for name, text in known.items():
                value = value.replace(f"${{{name}}}", text)
            return value
        case dict():
            return {
                replace_placeholders(key, known): replace_placeholders(item, known)
                for key, item in value.items()
            }
        case list():
            return [replace_placeholders(item, known) for item in value]
        case _:
            return value


def _title(wire: Wire) -> str:
    """Return the object's unique title in the stack: kind, namespace if any, and name."""
    metadata = wire["metadata"]
    where = [metadata["namespace"]] if metadata.get("namespace") else []
    return "-".join([wire["kind"], *where, metadata["name"]])


def _owned_metadata(wire: Wire, stack: str) -> Wire:
    # Kubernetes drops empty maps, which Pulumi would add again in each `up`.
    metadata = {key: value for key, value in wire["metadata"].items() if value not in ({}, None)}
    annotations = dict(metadata.get("annotations") or {}) | {STACK_ANNOTATION: stack}
    if wire["kind"] == NODE_POOL.name:
        # `up` waits until the NodePool can launch nodes, or reports why it cannot.
        annotations.setdefault("pulumi.com/waitFor", "condition=Ready")
    return applied_by_us(metadata | {"annotations": annotations})


def _stack_of(wire: Wire) -> str | None:
    marked: str | None = (wire["metadata"].get("annotations") or {}).get(STACK_ANNOTATION)
    return marked


def _path(wire: Wire) -> str:
    """Return the object's path in the Kubernetes API."""
    kind, metadata = KINDS[wire["kind"]], wire["metadata"]
    where = f"/namespaces/{metadata.get('namespace') or 'default'}" if kind.namespaced else ""
    return f"{kind.root}{where}/{kind.plural}/{metadata['name']}"


def _faults(wire: Any) -> Iterator[str]:
    """Yield every fault of one manifest, with its kind and name."""
    kind = KINDS.get(str(wire.get("kind"))) if isinstance(wire, dict) else None
    if kind is None or str(wire.get("apiVersion")).rpartition("/")[0] != kind.group:
        allowed = ", ".join(f"{kind.api_version} {kind.name}" for kind in KINDS.values())
        successor = SUCCESSORS.get(str(wire.get("kind"))) if isinstance(wire, dict) else None
        if successor:
            yield f"{wire['kind']}: in v1 it is a {successor.name} of {successor.api_version}"
        else:
            yield f"unknown kind of object; allowed are {allowed}"
        return
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or not NAME.fullmatch(str(metadata.get("name"))):
        yield (
            f"{kind.name}: metadata={metadata!r}: a name is required, of lower-case letters, "
            "digits, '-' and '.', such as metadata: {name: web}"
        )
        return
    name = f"{kind.name} {metadata['name']}"
    if wire["apiVersion"] != kind.api_version:
        yield f"{name}: apiVersion is {wire['apiVersion']!r}; it must be {kind.api_version}"
    yield from (f"{name}: {fault}" for fault in _content_faults(kind, wire))


def _content_faults(kind: Kind[Any], wire: Wire) -> Iterator[object]:
    """Yield what the object's CRD does not allow, and what its check at run time does not."""
    faults = list(schema_faults(kind.name, wire))
    try:
        typed = msgspec.convert(wire, kind.type)
    except msgspec.ValidationError as exc:
        yield from faults
        if not faults:
            yield exc
        return
    invalid = []
    if isinstance(typed, NodePool):
        invalid = problems(typed)
    if isinstance(typed, NodeOverlay):
        invalid = overlay_problems(typed)
    for fault in faults:
        is_said = fault.constraint in {"pattern", "enum", "rule"} and invalid
        if not (is_said and CHECKED_TWICE.intersection(fault.path)):
            yield fault
    yield from invalid
