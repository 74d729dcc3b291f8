"""The data about all nodes and pods that the disruption controller reads before it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.karpenter.annotations import OF_PODS, invalid_values
from controller.apis.kubernetes.pods import Pod
from controller.disruption.methods.method import Context
from controller.disruption.methods.repair import Unhealthy, unhealthy
from controller.disruption.problem import DisruptionProblem


@dataclass(frozen=True, slots=True)
class Overview:
    """Candidates, consumed budgets, unhealthy nodes, and annotated pods on Joiner's nodes."""

    context: Context
    unhealthy: Unhealthy
    annotated: Sequence[Pod]
    """Pods with the annotation `karpenter.sh/do-not-disrupt`, or with an invalid one of Joiner."""


def overview(problem: DisruptionProblem) -> Overview:
    """Return the overview of all nodes and pods. Cost: seconds in a large cluster."""
    ours = {state.name for state in problem.snapshot.nodes if state.managed}
    return Overview(
        context=_prepare_context(problem),
        unhealthy=unhealthy(problem),
        annotated=[
            pod
            for pod in problem.snapshot.pods
            if pod.metadata.annotations and pod.spec.node_name in ours
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations
            or invalid_values(pod.metadata.annotations, OF_PODS)
        ],
    )


def _prepare_context(problem: DisruptionProblem) -> Context:
    """Return the context of a problem, with its candidates and consumed budgets computed."""
    context = Context(problem)
    _ = context.survey, context.consumed  # read here, and not on the event loop
    return context
