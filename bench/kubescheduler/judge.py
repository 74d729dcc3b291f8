"""Ask kube-scheduler's PreFilter and Filter plugins about recorded worlds.

    with kube_scheduler() as judge:
        judge.verdicts(world)["default/web-1"]["node-1"]      # "" if the node admits the pod
        judge.replay(world, plan).refused                     # {} if some order binds every pod

The program is `kubefilter` in the Go module of the testbed's Kubernetes. One process answers
thousands of worlds; a small world takes about 5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.dialogue import Dialogue, dialogue_with
from testbed.processes import binaries

Object = Mapping[str, Any]

Verdicts = Mapping[str, Mapping[str, str]]
"""By pod and node: why the node is refused, beginning with the plugin's name; "" if admitted."""


class JudgeFailedError(RuntimeError):
    """The program gave no answer; the message has its error."""


class InvalidPodError(ValueError):
    """The API server would refuse to create a pod; the message has its reasons."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Nodes that a plan adds to a world, with their CSINodes and running pods."""

    nodes: Sequence[Object] = ()
    csi_nodes: Sequence[Object] = ()
    pods: Sequence[Object] = ()

    def content(self) -> dict[str, Any]:
        """Return the addition as a part of a question."""
        parts = {"nodes": self.nodes, "csiNodes": self.csi_nodes, "pods": self.pods}
        return {name: list(part) for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes to launch, and the planned node of each pod by namespace/name."""

    bind: Mapping[str, str]
    launched: Addition = field(default_factory=Addition)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a plan.

    `refused` has the pods that no order of binding found admits on their planned node, and why.
    `verdicts` has the pods that the plan does not bind, after it is carried out.
    """

    refused: Mapping[str, str]
    verdicts: Verdicts


@dataclass(frozen=True, slots=True)
class KubeScheduler:
    """A running process with kube-scheduler's plugins."""

    dialogue: Dialogue

    def verdicts(self, world: Object) -> Verdicts:
        """Return which existing nodes admit each pending pod, as the world is now.

        Raises JudgeFailedError.
        """
        return self.replay(world, Plan({})).verdicts

    def replay(self, world: Object, plan: Plan, alone: Sequence[Addition] = ()) -> Replayed:
        """Carry out a plan, one pod after the other, and then judge the pods that are left.

        Each addition in `alone` is added by itself, and its nodes are in the verdicts.

        Raises JudgeFailedError.
        """
        question = {
            "world": world,
            "plan": {**plan.launched.content(), "bind": dict(plan.bind)},
            "alone": [addition.content() for addition in alone],
        }
        answer = self.dialogue.ask(question)
        return Replayed(answer.get("refused", {}), answer.get("verdicts", {}))

    def stored_pods(self, pods: Sequence[Object]) -> list[dict[str, Any]]:
        """Return pods as the API server stores them: with defaults, and with merged selectors.

        Raises:
            InvalidPodError: the API server would refuse one of them.
            JudgeFailedError: the process gave no answer.

        """
        answer = self.dialogue.ask({"create": list(pods)})
        if refused := answer.get("invalid"):
            raise InvalidPodError("\n".join(f"{key}: {why}" for key, why in refused.items()))
        stored: list[dict[str, Any]] = answer.get("pods", [])
        return stored


@contextmanager
def kube_scheduler() -> Iterator[KubeScheduler]:
    """Start the process; it ends with the block. The program is built if necessary."""
    with dialogue_with([str(binaries.ensure("kubefilter"))], JudgeFailedError) as dialogue:
        yield KubeScheduler(dialogue)
