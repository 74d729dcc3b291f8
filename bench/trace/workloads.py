"""The workloads of a simulated cluster, Deployments and Jobs, and their pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from bench.parity.worlds import HOSTNAME, ZONE, Object, required_term
from bench.parity.worlds import pod as written_pod
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import LabelSelector, ObjectMeta, OwnerReference, to_wire
from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.apis.kubernetes.workloads import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from controller.apis.labels import DO_NOT_DISRUPT
from controller.constraints.resources import CPU, MEMORY, parse_resources

NAMESPACE = "default"
UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")
READY = Condition(type="Ready", status="True", reason="Ready")


@dataclass(frozen=True, slots=True)
class Size:
    """A pod's requests, in thousandths of a CPU and of a byte."""

    cpu: int
    memory: int


@dataclass(eq=False)
class Workload:
    """A Deployment, or a Job if its pods `run_for` a number of seconds.

    `cpu` is in millicores, `memory` in MiB. `unavailable` is the share of its pods that its
    PodDisruptionBudget allows to be disrupted at once; None means no budget.
    """

    name: str
    cpu: int
    memory: int
    replicas: int = 0
    selector: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False
    """Whether its pods must spread evenly over the zones."""

    apart: bool = False
    """Whether no two of its pods may share a node."""

    unavailable: float | None = 0.2
    run_for: float | None = None
    protected: bool = False
    """Whether its pods have the do-not-disrupt annotation."""

    version: int = 0
    pods: dict[str, Member] = field(default_factory=dict)
    """Its pods that are not terminating, by name."""

    @cached_property
    def size(self) -> Size:
        """The requests of each of its pods."""
        amounts = parse_resources({CPU: f"{self.cpu}m", MEMORY: f"{self.memory}Mi"})
        return Size(amounts[CPU], amounts[MEMORY])

    @cached_property
    def template(self) -> Pod:
        """The pod of which all its pods are copies."""
        labels = {"app": self.name}
        spec: dict[str, Any] = {}
        if self.selector:
            spec["nodeSelector"] = dict(self.selector)
        if self.spread:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": labels},
                }
            ]
        if self.apart:
            spec["affinity"] = {"podAntiAffinity": required_term(labels, HOSTNAME)}
        written = written_pod(self.name, cpu=self.cpu, memory=self.memory, labels=labels, **spec)
        pod = msgspec.convert(written, Pod)
        version, kind = ("apps/v1", "ReplicaSet") if self.run_for is None else ("batch/v1", "Job")
        owner = OwnerReference(
            api_version=version, kind=kind, name=self.name, uid=self.name, controller=True
        )
        metadata = msgspec.structs.replace(
            pod.metadata,
            owner_references=[owner],
            annotations={DO_NOT_DISRUPT: "true"} if self.protected else {},
        )
        return msgspec.structs.replace(pod, metadata=metadata)

    @property
    def ready(self) -> int:
        """Number of its pods that are ready."""
        return sum(one.ready for one in self.pods.values())

    def allowed_disruptions(self) -> int | None:
        """Return how many of its pods may be evicted now; None if no budget limits it."""
        if self.unavailable is None:
            return None
        spare = max(1, int(self.replicas * self.unavailable))
        return max(0, self.ready - (self.replicas - spare))

    def budget(self) -> PodDisruptionBudget | None:
        """Return its PodDisruptionBudget with the current status, or None."""
        allowed = self.allowed_disruptions()
        if allowed is None:
            return None
        return PodDisruptionBudget(
            metadata=ObjectMeta(name=self.name, namespace=NAMESPACE, uid=f"pdb-{self.name}"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": self.name})),
            status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
        )


@dataclass(eq=False, slots=True)
class Member:
    """A pod of a workload; `seen` is its object in the API server."""

    workload: Workload
    seen: Pod
    created: float
    version: int = 0
    node: str = ""
    nominated: str = ""
    ready: bool = False
    leaving: bool = False
    deletion_cost: int = 0
    """Its pod-deletion-cost; a ReplicaSet deletes pods with a lower one first."""

    _written: Object | None = None

    @classmethod
    def create(cls, workload: Workload, number: int, now: float) -> Member:
        """Return a new pending pod, named WORKLOAD-`number` and created at second `now`."""
        name = f"{workload.name}-{number}"
        template = workload.template
        owners = template.metadata.owner_references
        if workload.run_for is None:  # each version has its own ReplicaSet
            own = f"{workload.name}-{workload.version}"
            owners = [msgspec.structs.replace(owners[0], name=own, uid=own)]
        metadata = msgspec.structs.replace(
            template.metadata, name=name, uid=f"uid-{name}", owner_references=owners
        )
        status = msgspec.structs.replace(template.status, conditions=[UNSCHEDULABLE])
        seen = msgspec.structs.replace(template, metadata=metadata, status=status)
        return cls(workload, seen, now, version=workload.version)

    @property
    def key(self) -> str:
        """The pod's namespace and name, as namespace/name."""
        return self.seen.key

    @property
    def name(self) -> str:
        """The pod's name, without its namespace."""
        return self.seen.metadata.name

    def see(self, **changes: Any) -> None:
        """Change fields of the pod's object in the API server."""
        self.seen = msgspec.structs.replace(self.seen, **changes)
        self._written = None

    def wire(self) -> Object:
        """Return the pod as JSON-ready values."""
        if self._written is None:
            self._written = to_wire(self.seen)
        return self._written

    def as_pending(self) -> Pod:
        """Return the pod as if it were pending, even if it runs."""
        return msgspec.structs.replace(
            self.seen,
            spec=unbound(self.seen.spec),
            status=msgspec.structs.replace(
                self.workload.template.status, conditions=[UNSCHEDULABLE]
            ),
        )


def unbound(spec: PodSpec) -> PodSpec:
    """Return a copy of the spec that names no node."""
    return msgspec.structs.replace(spec, node_name="")
