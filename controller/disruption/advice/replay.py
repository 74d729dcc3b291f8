"""Replays a recorded history under Joiner, from one recording to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from controller.apis.kubernetes.pods import Pod
from controller.disruption.advice.adoption import name_nodes
from controller.disruption.advice.forecast import Forecast
from controller.disruption.applying import replace_nodes
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import bound_copy
from controller.scheduling.scheduler import never, schedule
from controller.state.pods import is_daemon, is_static


def at_next_recording(
    before: Forecast,
    recorded: DisruptionProblem,
    outside: Collection[str],
    *,
    expired: Callable[[], bool] = never,
) -> DisruptionProblem:
    """Return the cluster under Joiner at the time of the next recording.

    `before` is the forecast at the previous recording. `recorded` is the next recording. `outside`
    names the nodes outside Joiner that Joiner replaces.

    Pods that ran before stay on their nodes, and Joiner launches nodes for new pods. Nodes that
    Joiner does not replace are as in the recording. A node in `outside` stays only if no other node
    can run one of its pods.
    """
    ours = {
        state.name: state for state in before.nodes if state.managed or state.name in before.staying
    }
    theirs = {
        state.name: state
        for state in recorded.snapshot.nodes
        if not state.managed and state.name not in outside and state.name not in ours
    }
    node_of = {pod.key: pod.spec.node_name for pod in before.problem.snapshot.pods}
    placed: list[Pod] = []
    new: list[Pod] = []
    for pod in recorded.snapshot.pods:
        former = node_of.get(pod.key, "")
        if pod.spec.node_name in theirs:
            placed.append(pod)
        elif is_daemon(pod) or is_static(pod):
            placed += [pod] if pod.spec.node_name in ours else []
        elif former in ours:
            placed.append(bound_copy(pod, former))
        else:
            new.append(pod)
    snapshot = replace(
        recorded.snapshot, nodes=(*ours.values(), *theirs.values()), pods=tuple(placed)
    )
    results = schedule(new, snapshot=snapshot, settings=recorded.scheduling, expired=expired)
    stuck = [pod for pod in new if pod.key in results.unschedulable]
    hosts = {pod.spec.node_name for pod in stuck}
    there = tuple(state for state in recorded.snapshot.nodes if state.name in hosts)
    problem = replace(
        recorded,
        snapshot=replace(
            snapshot,
            nodes=(*snapshot.nodes, *(state for state in there if state.name not in ours)),
            pods=(*placed, *new),
        ),
    )
    moves = {key: name for name, keys in results.existing_nodes.items() for key in keys}
    return replace_nodes(problem, (), name_nodes(problem, results.new_nodes), moves)
