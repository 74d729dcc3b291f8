"""The workloads that own pods, and copies of pods without some of their constraints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import (
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    TopologySpreadConstraint,
)
from controller.apis.kubernetes.taints import Requirement
from controller.apis.labels import normalize

TEMPLATE_HASH = "pod-template-hash"
"""The label of a Deployment's pods; the name of their ReplicaSet ends with its value."""

APP_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")
"""The labels that name the application of a pod without an owner."""


def workload(pod: Pod) -> str:
    """Return the kind, namespace and name of the workload, such as `Deployment shop/web`."""
    owners, namespace = pod.metadata.owner_references, pod.metadata.namespace
    if not owners:
        called = (pod.metadata.labels[name] for name in APP_LABELS if name in pod.metadata.labels)
        app = next(called, "")
        return f"app {namespace}/{app}" if app else f"Pod {pod.key}"
    owner = owners[0]
    hashed = pod.metadata.labels.get(TEMPLATE_HASH)
    if owner.kind == "ReplicaSet" and hashed and owner.name.endswith(f"-{hashed}"):
        return f"Deployment {namespace}/{owner.name.removesuffix(f'-{hashed}')}"
    return f"{owner.kind} {namespace}/{owner.name}"


def by_workload(pods: Iterable[Pod]) -> Mapping[str, list[Pod]]:
    """Return the pods of each workload, by its name."""
    found: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        found[workload(pod)].append(pod)
    return found


def without_annotation(pod: Pod, name: str) -> Pod:
    """Return a copy of the pod without an annotation."""
    annotations = {key: value for key, value in pod.metadata.annotations.items() if key != name}
    return with_fields(pod, "metadata", annotations=annotations)


def without_anti_affinity(pod: Pod) -> Pod:
    """Return a copy of the pod without required anti-affinity to other pods."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return pod
    return with_fields(pod, "spec.affinity.pod_anti_affinity", required=[])


def without_strict_spreads(pod: Pod) -> Pod:
    """Return a copy of the pod without topology spread constraints with `DoNotSchedule`."""
    left = [each for each in pod.spec.topology_spread_constraints if not is_strict(each)]
    return with_fields(pod, "spec", topology_spread_constraints=left)


def without_strict_separation(pod: Pod) -> Pod:
    """Return a copy of the pod without required anti-affinity and without strict spreads."""
    return without_strict_spreads(without_anti_affinity(pod))


def is_strict(spread: TopologySpreadConstraint) -> bool:
    """Whether a topology spread constraint has `DoNotSchedule`."""
    return spread.when_unsatisfiable == "DoNotSchedule"


def required_labels(pod: Pod) -> list[Requirement]:
    """Return the requirements of node selector and required node affinity, with stable label names.

    Requirements of several terms, which are alternatives, follow one another.
    """
    selected = [
        Requirement(key=key, operator="In", values=[value])
        for key, value in pod.spec.node_selector.items()
    ]
    expressions = (each for term in _terms(pod) for each in term.match_expressions)
    return [
        msgspec.structs.replace(each, key=normalize(each.key)) for each in (*selected, *expressions)
    ]


def without_selector(pod: Pod, key: str) -> Pod:
    """Return a copy of the pod that may run on nodes with any value of a label."""
    chosen = {
        name: value for name, value in pod.spec.node_selector.items() if normalize(name) != key
    }
    pod = with_fields(pod, "spec", node_selector=chosen)
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None or not _terms(pod):
        return pod
    terms = [
        msgspec.structs.replace(
            term,
            match_expressions=[
                each for each in term.match_expressions if normalize(each.key) != key
            ],
        )
        for term in _terms(pod)
    ]
    is_open = any(not term.match_expressions and not term.match_fields for term in terms)
    required = None if is_open else NodeSelector(node_selector_terms=terms)
    nodes = NodeAffinity(required=required, preferred=affinity.node_affinity.preferred)
    return with_fields(pod, "spec.affinity", node_affinity=nodes)


def _terms(pod: Pod) -> list[NodeSelectorTerm]:
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return []
    required = affinity.node_affinity.required
    return required.node_selector_terms if required is not None else []
