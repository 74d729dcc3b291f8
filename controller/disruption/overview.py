"""What the disruption controller reads of the whole cluster before it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.disruption.budgets import Consumption, consumption
from controller.disruption.candidates import Candidates, survey
from controller.disruption.problem import DisruptionProblem


@dataclass(frozen=True, slots=True)
class Overview:
    """The candidates, what budgets count, and the annotated pods of Joiner's nodes."""

    candidates: Candidates
    consumed: Consumption
    annotated: Sequence[Pod]
    """Pods with the annotation `karpenter.sh/do-not-disrupt`."""


def overview(problem: DisruptionProblem) -> Overview:
    """Return the overview of all nodes and pods. Cost: seconds in a large cluster."""
    ours = {state.name for state in problem.snapshot.nodes if state.managed}
    return Overview(
        candidates=survey(problem),
        consumed=consumption(problem.snapshot.nodes),
        annotated=[
            pod
            for pod in problem.snapshot.pods
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations and pod.spec.node_name in ours
        ],
    )
