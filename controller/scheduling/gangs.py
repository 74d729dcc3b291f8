"""Gang scheduling: all of a gang's pods are scheduled, or none. `state.gangs` determines the gangs.

The pods of all gangs are scheduled with all other pods, so that gangs share nodes. If too few pods
of some gangs get a node, the gang with the lowest priority is left out and the others are scheduled
again. A gang that must run in one topology domain is first scheduled alone in each domain, and gets
the cheapest one that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.results import NewNode, Results
from controller.state.gangs import Gang, gang_of, stays
from controller.state.snapshot import Snapshot

MAX_ROUNDS = 8
"""The round in which all incomplete gangs are left out; before it, each round leaves out one."""

MAX_DOMAINS = 5
"""The maximum number of domains that a cause names."""

Solve = Callable[[Sequence[Pod]], Results]
"""Schedules pods in the snapshot's cluster without regard to gangs."""

Causes = tuple[str, ...]


def schedule_gangs(
    pods: Sequence[Pod], gangs: Mapping[str, Gang], *, snapshot: Snapshot, solve: Solve
) -> Results:
    """Return where the pods are scheduled; every gang is scheduled as a whole or refused.

    A gang is whole if at least `min_count` of its pods are bound or scheduled. New nodes name their
    gangs in the annotation `joiner.dev/gang`. A gang of which fewer than `min_count` pods exist is
    not among `refused_gangs`, so that its nodes stay while it restarts.
    """
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        name = gang_of(pod)
        members.setdefault(name if name in gangs else "", []).append(pod)
    refused: dict[str, Causes] = {}
    for name, gang in gangs.items():
        if gang.existing < gang.min_count:
            refused[name] = (
                f"gang {name} needs {gang.min_count} pods, of which {gang.existing} exist",
            )
        elif gang.topology_key:
            members[name], refused[name] = _in_one_domain(gang, members[name], snapshot, solve)
    refused = {name: causes for name, causes in refused.items() if causes}
    incomplete = {name for name, gang in gangs.items() if gang.existing < gang.min_count}
    for round_number in range(MAX_ROUNDS + 1):
        results = solve([p for name in members if name not in refused for p in members[name]])
        failed = {
            name: causes
            for name, gang in gangs.items()
            if name not in refused and (causes := _shortfall(gang, members[name], results))
        }
        if not failed:
            break
        last = min(failed, key=lambda name: (_priority(members[name]), -len(members[name]), name))
        refused |= failed if round_number == MAX_ROUNDS - 1 else {last: failed[last]}
    left_out = {pod.key: causes for name, causes in refused.items() for pod in members[name]}
    gang_by_pod = {pod.key: name for name in gangs for pod in members[name]}
    return replace(
        results,
        new_nodes=tuple(_annotate(node, gang_by_pod) for node in results.new_nodes),
        unschedulable={**results.unschedulable, **left_out},
        refused_gangs=frozenset(refused) - incomplete,
    )


def _shortfall(gang: Gang, pods: Sequence[Pod], results: Results) -> Causes:
    """Return why too few pods of a gang were scheduled; empty if enough were."""
    without_node = [pod.key for pod in pods if pod.key in results.unschedulable]
    possible = gang.bound + len(pods) - len(without_node)
    if possible >= gang.min_count:
        return ()
    first = f"only {possible} of the {gang.min_count} pods of gang {gang.name} can be scheduled"
    return (first, *results.unschedulable[without_node[0]])


def _in_one_domain(
    gang: Gang, pods: list[Pod], snapshot: Snapshot, solve: Solve
) -> tuple[list[Pod], Causes]:
    """Return the gang's pods, restricted to the cheapest domain that holds them all.

    If no domain does, the pods are returned unchanged, with the causes.
    """
    if gang.topology_key == labels.HOSTNAME:
        return pods, (f"gang {gang.name}: one node for a whole gang is not supported",)
    choices: list[tuple[int, float, str, list[Pod]]] = []
    failures: list[str] = []
    for domain in _open_domains(gang, snapshot):
        pinned = [
            _pin_to_domain(pod, gang.topology_key, domain)
            for pod in pods
            if pod.spec.node_selector.get(gang.topology_key, domain) == domain
        ]
        results = solve(pinned)
        possible = gang.bound + len(pinned) - len(results.unschedulable)
        if len(pinned) == len(pods) and possible >= gang.min_count:
            choices.append((len(results.unschedulable), results.cost, domain, pinned))
        else:
            failures.append(f"{domain} has capacity for {possible} of {gang.min_count} pods")
    if choices:
        return min(choices, key=lambda choice: choice[:3])[3], ()
    listed = "; ".join(failures[:MAX_DOMAINS]) or "no domain exists"
    return pods, (f"no {gang.topology_key} can hold gang {gang.name}: {listed}",)


def _open_domains(gang: Gang, snapshot: Snapshot) -> list[str]:
    """Return the domains that may hold a gang: the domains of its pods that stay, or else all."""
    key = gang.topology_key
    if gang.bound:
        members = (pod for pod in snapshot.pods if gang_of(pod) == gang.name)
        nodes_of_gang = {pod.spec.node_name for pod in members if stays(pod)}
        # Pods on nodes that are being deleted do not stay, so their domains do not count.
        domains = {
            node.labels[key]
            for node in snapshot.nodes
            if node.name in nodes_of_gang and key in node.labels and not node.deleting
        }
        if domains:
            return sorted(domains)
    return sorted(set(_domains(key, snapshot)))


def _domains(key: str, snapshot: Snapshot) -> Iterator[str]:
    """Yield the values of a label on existing nodes and on nodes that can be launched."""
    yield from (node.labels[key] for node in snapshot.nodes if key in node.labels)
    for pool in snapshot.node_pools:
        template = pool.spec.template
        yield from (v for name, v in (template.metadata.labels or {}).items() if name == key)
        for requirement in template.spec.requirements:
            if labels.normalize(requirement.key) == key and requirement.operator == "In":
                yield from requirement.values
        for instance_type in snapshot.instance_types.get(pool.metadata.name, ()):
            for offering in instance_type.offerings:
                if offering.available and key in offering.requirements:
                    yield offering.requirements[key]


def _pin_to_domain(pod: Pod, key: str, domain: str) -> Pod:
    return with_fields(pod, "spec", node_selector={**pod.spec.node_selector, key: domain})


def _priority(pods: Sequence[Pod]) -> int:
    return max(pod.spec.priority or 0 for pod in pods)


def _annotate(node: NewNode, gang_by_pod: Mapping[str, str]) -> NewNode:
    names = sorted({gang_by_pod[key] for key in node.pods if key in gang_by_pod})
    if not names:
        return node
    return replace(node, annotations={**node.annotations, labels.GANG: ",".join(names)})
