"""Every metric, with Karpenter's names, labels and buckets, in its own registry.

Reconcilers call one method per event (`record_creation`, `record_eviction`, …) and use no metric's
name. Each scrape reads gauges of state (nodes, pools, whether the mirror is synced) from the
mirror: see `clusterstate`, and `details` for series whose number grows with the cluster.
"""

from __future__ import annotations

import contextlib
import platform
import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.disruption import Balance
from controller.apis.karpenter.nodeclaim import INSTANCE_TERMINATING, NodeClaim
from controller.apis.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL, Kind
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.ownership import node_pool_of
from controller.cloudprovider.errors import (
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from controller.cloudprovider.provider import Notice
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.modes import Mode
from controller.scheduling.results import Results
from controller.telemetry.summaries import QuantileSummary

# A second series per counter, with its creation time, doubles the cost of a scrape.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

DURATIONS = (0.005, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Buckets of durations, in seconds: fifteen of Karpenter's 45. With all of them, the calls to the
cloud alone would have 480 series on the smallest cluster."""

DAY = 86_400
LIFETIMES = (900, 1800, 3600, 7200, 14_400, 28_800, 43_200, DAY, *(DAY * n for n in (
    2, 3, 5, 7, 10, 15, 20, 25, 30,
)))  # fmt: skip

REBOOTS = (10, 20, 40, 80, 160, 320, 640, 1280)
"""Buckets of reboots, in seconds."""

GO_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The default buckets of Go's Prometheus client."""

KNOWN_ERRORS = (InsufficientCapacityError, NodeClaimNotFoundError, NodeClassNotReadyError)
"""Cloud provider errors that Karpenter names in its metric; all others are `unknown`."""

CONDITIONED: tuple[Kind[Any], ...] = (NODE_POOL, NODE_CLAIM, EC2_NODE_CLASS, NODE)
"""Kinds whose condition transitions are counted."""

DISRUPTED = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")


_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class Metrics:
    """The counters, gauges and histograms that the controller updates, in `registry`.

    `detailed` adds metrics with many series. A method that sets a number sets a gauge; no method
    changes what the controller does.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        version: str = "",
        detailed: bool = False,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._detailed = detailed
        self._make_node_metrics()
        self._make_condition_metrics()
        self._make_decision_metrics()
        self._make_runtime_metrics()
        build = self._gauge(
            "karpenter_build_info",
            "Always 1; version is that of Joiner, goversion that of Python.",
            "version", "goversion", "goarch", "commit",
        )  # fmt: skip
        build.labels(version, f"python{platform.python_version()}", platform.machine(), "").set(1)

    # Nodes and claims.

    def record_creation(self, claim: NodeClaim, reason: str) -> None:
        """Count a created NodeClaim."""
        relaxed = claim.metadata.annotations.get(labels.MIN_VALUES_RELAXED, "false")
        self._claims_created.labels(reason, node_pool_of(claim), relaxed).inc()

    def record_disruption(
        self, claim: NodeClaim, reason: str, *, pods: int = 0, policy: str = ""
    ) -> None:
        """Count a disrupted NodeClaim; `reason` is in snake_case.

        `pods` is the number of pods that need another node. `policy` is the pool's
        consolidationPolicy if consolidation disrupts it, otherwise empty.
        """
        capacity_type = claim.metadata.labels.get(labels.CAPACITY_TYPE, "")
        values = (
            reason,
            node_pool_of(claim),
            capacity_type,
            _snake(policy),
            _termination_mode(claim),
        )
        self._claims_disrupted.labels(*values).inc()
        self._pods_disrupted.labels(*values).inc(pods)

    def record_repair(
        self, claim: NodeClaim, condition: str, drain_bound: timedelta | None = None
    ) -> None:
        """Count a NodeClaim deleted because of an unhealthy condition of its node.

        `drain_bound` is how long its drain may take; None for as long as the NodeClaim allows.
        """
        capacity_type = claim.metadata.labels.get(labels.CAPACITY_TYPE, "")
        self._claims_repaired.labels(
            _snake(condition),
            node_pool_of(claim),
            capacity_type,
            claim.status.image_id,
            _termination_mode(claim) if drain_bound is None else _mode(drain_bound),
        ).inc()

    def record_termination(self, claim: NodeClaim, now: datetime) -> None:
        """Count a deleted NodeClaim, and observe how long its termination took."""
        own = claim.metadata.labels
        self._claims_terminated.labels(
            node_pool_of(claim), own.get(labels.CAPACITY_TYPE, ""), own.get(labels.ZONE, "")
        ).inc()
        _observe_since(
            self._claim_termination, node_pool_of(claim), claim.metadata.deletion_timestamp, now
        )
        terminating = conditions.find(claim.status.conditions, INSTANCE_TERMINATING)
        since = terminating.last_transition_time if terminating else None
        _observe_since(self._instance_termination, node_pool_of(claim), since, now)

    def record_node_creation(self, claim: NodeClaim) -> None:
        """Count a registered node."""
        zone = claim.metadata.labels.get(labels.ZONE, "")
        self._nodes_created.labels(node_pool_of(claim), zone).inc()

    def record_drain(self, node: Node, reason: str, *, pods: int = 0) -> None:
        """Count a drained node; `pods` is how many pods were evicted or deleted."""
        self._nodes_drained.labels(node_pool_of(node)).inc()
        self._pods_drained.labels(reason).inc(pods)

    def record_node_termination(self, node: Node, now: datetime) -> None:
        """Count a node whose finalizer was removed, and observe its termination and lifetime."""
        self._nodes_terminated.labels(
            node_pool_of(node), node.metadata.labels.get(labels.ZONE, "")
        ).inc()
        if node.metadata.deletion_timestamp is not None:
            waited = (now - node.metadata.deletion_timestamp).total_seconds()
            self._node_termination.observe(waited, node_pool_of(node))
        _observe_since(
            self._node_lifetime, node_pool_of(node), node.metadata.creation_timestamp, now
        )

    def record_eviction(self, code: int) -> None:
        """Count an eviction request by its HTTP status."""
        self._evictions.labels(str(code)).inc()

    def record_pod_change(self, before: Pod | None, after: Pod) -> None:
        """Observe how long a pod took to be bound and to become ready, when it does."""
        created = after.metadata.creation_timestamp
        if before is None or created is None:
            return
        observers: Mapping[str, Callable[[float], None]] = {
            "PodScheduled": self._pod_bound.labels(_dynamic_resources(after)).observe,
            "Ready": self._pod_startup.observe,
        }
        for kind, observe in observers.items():
            reached = conditions.find(after.status.conditions, kind)
            if reached is None or not reached.is_true or reached.last_transition_time is None:
                continue
            if not conditions.is_true(before.status.conditions, kind):
                observe((reached.last_transition_time - created).total_seconds())

    def record_condition_changes(
        self, kind: Kind[Any], before: Sequence[Condition], after: Sequence[Condition]
    ) -> None:
        """Count the condition transitions of an object, and observe how long a status lasted."""
        if kind not in self._transitions:
            return
        for condition in after:
            was = conditions.find(before, condition.type)
            if was is not None and was.status == condition.status:
                continue
            transition = (condition.type, condition.status, condition.reason)
            self._transitions[kind].labels(*transition).inc()
            since = was.last_transition_time if was is not None else None
            until = condition.last_transition_time
            if was and since and until and kind in self._transition_times:
                lasted = (until - since).total_seconds()
                self._transition_times[kind].labels(was.type, was.status).observe(lasted)

    # Decisions.

    @contextlib.contextmanager
    def scheduling(self, controller: str = "provisioner") -> Iterator[None]:
        """Time a scheduling run."""
        with self._scheduling.labels(controller).time():
            yield

    def record_solve(self, results: Results, controller: str = "provisioner") -> None:
        """Set the number of unschedulable pods, the cost and lower bound of a scheduling run."""
        self._unschedulable.labels(controller).set(len(results.unschedulable))
        self._cost.labels(controller).set(results.cost)
        self._lower_bound.labels(controller).set(results.lower_bound)

    def eligible(self, reason: Reason, count: int) -> None:
        """Set the number of nodes eligible for disruption for a reason."""
        self._eligible.labels(reason.label).set(count)

    def allowed_disruptions(self, node_pool: str, reason: Reason, allowed: int) -> None:
        """Set the number of nodes that a pool's budgets allow to disrupt now."""
        self._allowed.labels(node_pool, reason.label).set(allowed)

    def consuming_budgets(self, node_pool: str, reason: Reason, nodes: int) -> None:
        """Set how many of a pool's nodes count against budgets: not ready, or being disrupted."""
        self._consuming.labels(node_pool, reason.label).set(nodes)

    def record_decision(self, command: Command) -> None:
        """Count a command that begins."""
        decision = _decision(command)
        self._decisions.labels(*decision).inc()
        pools = Tally(candidate.node_pool.metadata.name for candidate in command.candidates)
        for pool in pools:
            self._decisions_by_pool.labels(pool, *decision).inc()
            if command.terminate_first is not None:
                cause = command.terminate_first.value
                self._terminate_first.labels(pool, command.reason.label, cause).inc()

    def record_reboot(self, result: str, duration: timedelta) -> None:
        """Count a reboot that ended, and observe the time since repair requested it.

        Results are `succeeded`, `recovery_timeout`, `provider_error` and `invalid_request`.
        """
        self._reboots.labels(result).inc()
        self._reboot_duration.labels(result).observe(duration.total_seconds())

    def record_reboot_recovery(self, duration: timedelta) -> None:
        """Observe the time from the request to the cloud until the node was Ready again."""
        self._reboot_recovery.observe(duration.total_seconds())

    def set_changed_deletion_costs(self, nodes: Mapping[str, int]) -> None:
        """Set the number of each NodePool's nodes on which the last run changed deletion costs."""
        self._deletion_cost_nodes.clear()
        for pool, count in nodes.items():
            self._deletion_cost_nodes.labels(pool).set(count)

    def record_deletion_cost_write(self, result: str) -> None:
        """Count an attempt to write a pod's deletion cost, by its result.

        Results are `updated`, `skipped_notfound`, `skipped_conflict` and `error`.
        """
        self._deletion_costs.labels(result).inc()

    @contextlib.contextmanager
    def deciding(self) -> Iterator[Callable[[Decision], None]]:
        """Time a disruption decision; yields a function that records its result."""
        began = time.perf_counter()

        def record(decision: Decision) -> None:
            seconds = time.perf_counter() - began
            kinds = {_decision(command)[1:] for command in decision.commands}
            for kind in kinds or {(Reason.UNDERUTILIZED.label, "")}:
                self._evaluation.labels(*kind).observe(seconds)
            if decision.timed_out:
                self._timeouts.labels("multi").inc()
            for verdict in decision.verdicts:
                named = verdict.decision, verdict.pool, _snake(verdict.policy)
                self._moves.labels(*named).inc()
                if verdict.score is not None:
                    self._scores.labels(*named).observe(verdict.score)

        yield record

    def record_full_evaluation(self, now: datetime) -> None:
        """Set when every node was last evaluated for consolidation."""
        self._last_check.set(now.timestamp())

    def cluster_cost(self, cost: float, lower_bound: float) -> None:
        """Set the cluster's cost and lower bound in $/h, when no consolidation is possible."""
        self._cluster_cost.set(cost)
        self._cluster_bound.set(min(cost, lower_bound))

    def record_failed_validation(self, command: Command) -> None:
        """Count a command that failed validation."""
        self._failed_validations.labels(command.consolidation_type).inc()

    def record_advice(self, command: Command, mode: Mode) -> None:
        """Count a command that the mode `recommend` or `observe` does not begin."""
        self._advised.labels(mode.value, *_decision(command)).inc()

    def advice(self, mode: Mode, *, nodes: int, saving: float) -> None:
        """Set the number of nodes that advised commands would disrupt, and the saving in $/h."""
        self._advised_nodes.labels(mode.value).set(nodes)
        self._advised_saving.labels(mode.value).set(saving)

    def history(self, balance: Balance) -> None:
        """Set the totals of the history of commands."""
        for outcome, count in (("done", balance.done), ("failed", balance.failed)):
            self._history_decisions.labels(outcome).set(count)
        for when, saving in (
            ("predicted", balance.predicted),
            ("hour", balance.after_hour),
            ("day", balance.after_day),
        ):
            self._history_saving.labels(when).set(saving)
        for outcome, count in (("moved", balance.moved), ("running", balance.running)):
            self._history_pods.labels(outcome).set(count)
        self._history_lost.set(balance.replacements_disrupted)

    def record_failure(self, command: Command) -> None:
        """Count a command that ended without disrupting all of its nodes."""
        self._failures.labels(*_decision(command)).inc()

    def record_message(self, notice: Notice, now: datetime) -> None:
        """Count a message from the interruption queue, and observe its latency."""
        self._messages.labels(notice.kind).inc()
        if notice.sent_at is not None:
            self._message_wait.observe(max((now - notice.sent_at).total_seconds(), 0))

    def record_message_deletion(self) -> None:
        """Count a message deleted from the interruption queue."""
        self._messages_deleted.inc()

    def unhealthy_status(self, category: str) -> None:
        """Count an instance whose EC2 status check failed, once until the check passes."""
        self._unhealthy_statuses.labels(category).inc()

    @contextlib.contextmanager
    def cloud_call(
        self, controller: str, method: str, provider: str, node_pool: str = ""
    ) -> Iterator[None]:
        """Time a cloud provider call, and count it if it fails.

        `node_pool` is the NodePool of the call; empty if it concerns several or none.
        """
        with self._cloud_calls.labels(controller, method, provider).time():
            try:
                yield
            except Exception as exc:
                error = next((e.__name__ for e in KNOWN_ERRORS if isinstance(exc, e)), "unknown")
                self._cloud_errors.labels(controller, method, provider, error, node_pool).inc()
                raise

    # Loops, requests, leadership and events.

    @contextlib.contextmanager
    def reconcile(self, controller: str) -> Iterator[Callable[[str], None]]:
        """Time one reconciliation; yields a function that sets its result.

        Results are `success`, `requeue_after`, `requeue` (after a conflict) and `error`.
        """
        result = "success"

        def set_result(how: str) -> None:
            nonlocal result
            result = how

        self._active_of(controller).inc()
        began = time.perf_counter()
        try:
            yield set_result
        finally:
            self._reconcile_time_of(controller).observe(time.perf_counter() - began)
            self._active_of(controller).dec()
            self._reconciles_of(controller, result).inc()
            if result == "error":
                self._reconcile_errors.labels(controller).inc()

    def workers(self, controller: str, most: int) -> None:
        """Set the gauge of how many objects a reconciler may handle concurrently."""
        self._most_workers.labels(controller).set(most)

    def record_enqueue(self, controller: str, depth: int, *, retried: bool = False) -> None:
        """Count a key added to a queue, and set the queue's depth."""
        self._queue_adds_of(controller, controller).inc()
        self._queue_depth_of(controller, controller).set(depth)
        if retried:
            self._queue_retries.labels(controller, controller).inc()

    def record_dequeue(self, controller: str, depth: int, waited: float) -> None:
        """Observe how many seconds a key waited in a queue, and set the queue's depth."""
        self._queue_depth_of(controller, controller).set(depth)
        self._queue_wait_of(controller, controller).observe(waited)

    def record_request(self, method: str, status: int) -> None:
        """Count a request to the API server by HTTP status; 0 means no response."""
        self._requests.labels(str(status) if status else "<error>", method).inc()

    def leads(self, lease: str, is_leader: bool) -> None:
        """Set whether this process holds the lease."""
        self._leader.labels(lease).set(1 if is_leader else 0)

    def record_dropped_event(self, reason: str) -> None:
        """Count a Kubernetes event that was dropped because the queue was full."""
        self._events_dropped.labels(reason).inc()

    # Definitions.

    def _make_node_metrics(self) -> None:
        counter, histogram = self._counter, self._histogram
        claims, nodes, pods = "karpenter_nodeclaims", "karpenter_nodes", "karpenter_pods"
        self._claims_created = counter(
            f"{claims}_created_total", "NodeClaims created, by reason.",
            "reason", "nodepool", "min_values_relaxed",
        )  # fmt: skip
        self._claims_terminated = counter(
            f"{claims}_terminated_total",
            "NodeClaims whose instance was terminated.",
            "nodepool",
            "capacity_type",
            "zone",
        )
        self._claims_disrupted = counter(
            f"{claims}_disrupted_total", "NodeClaims disrupted, by disruption reason.", *DISRUPTED
        )
        self._claims_repaired = counter(
            f"{claims}_unhealthy_disrupted_total",
            "NodeClaims deleted because their node was unhealthy.",
            "condition", "nodepool", "capacity_type", "image_id", "termination_mode",
        )  # fmt: skip
        self._pods_disrupted = counter(
            f"{pods}_disruption_initiated_total",
            "Reschedulable pods on disrupted nodes, without DaemonSet and static pods.",
            *DISRUPTED,
        )
        self._claim_termination = histogram(
            f"{claims}_termination_duration_seconds",
            "Time from the deletion of a NodeClaim until it is removed, in seconds.",
            "nodepool", buckets=[2**n for n in range(12)],
        )  # fmt: skip
        self._instance_termination = histogram(
            f"{claims}_instance_termination_duration_seconds",
            "Time from the request to terminate an instance until it is gone, in seconds.",
            "nodepool", buckets=[2**n for n in range(11)],
        )  # fmt: skip
        self._nodes_created = counter(
            f"{nodes}_created_total", "Nodes that registered.", "nodepool", "zone"
        )
        self._nodes_terminated = counter(
            f"{nodes}_terminated_total", "Nodes whose instance was terminated.", "nodepool", "zone"
        )
        self._nodes_drained = counter(f"{nodes}_drained_total", "Nodes drained.", "nodepool")
        self._node_termination = self._summary(
            f"{nodes}_termination_duration_seconds",
            "Time from a node's deletion to the removal of its finalizer, in seconds.",
            "nodepool",
        )  # fmt: skip
        self._node_lifetime = histogram(
            f"{nodes}_lifetime_duration_seconds", "Lifetime of terminated nodes in seconds.",
            "nodepool", buckets=LIFETIMES,
        )  # fmt: skip
        self._evictions = counter(
            f"{pods}_eviction_requests_total", "Eviction requests by HTTP status code.", "code"
        )
        self._pods_drained = counter(
            f"{pods}_drained_total", "Pods drained during node termination, by reason.", "reason"
        )
        self._pod_bound = histogram(
            f"{pods}_bound_duration_seconds",
            "Time from a pod's creation to its binding, in seconds.",
            "dynamic_resources",
        )
        self._pod_startup = self._summary(
            f"{pods}_startup_duration_seconds",
            "Time from a pod's creation until it is ready, in seconds.",
        )

    def _make_condition_metrics(self) -> None:
        self._transitions = {
            kind: self._counter(
                f"operator_{kind.name.lower()}_status_condition_transitions_total",
                "Status transitions of conditions.", "type", "status", "reason",
            )
            for kind in CONDITIONED
        }  # fmt: skip
        self._transition_times = {
            kind: self._histogram(
                f"operator_{kind.name.lower()}_status_condition_transition_seconds",
                "How long conditions kept a status, in seconds.",
                "type", "status", buckets=GO_BUCKETS,
            )
            for kind in CONDITIONED
            if self._detailed
        }  # fmt: skip

    def _make_decision_metrics(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        disruption = "karpenter_voluntary_disruption"
        decision = ("decision", "reason", "consolidation_type")
        self._scheduling = histogram(
            "karpenter_scheduler_scheduling_duration_seconds",
            "Duration of the scheduling process in seconds.",
            "controller",
        )
        self._unschedulable = gauge(
            "karpenter_scheduler_unschedulable_pods_count",
            "Unschedulable pods in the last scheduling run.",
            "controller",
        )  # fmt: skip
        self._cost = gauge(
            "joiner_scheduler_cost_dollars_per_hour",
            "Cost of the new nodes of the last scheduling run, in $/h.",
            "controller",
        )
        self._lower_bound = gauge(
            "joiner_scheduler_lower_bound_dollars_per_hour",
            "Lower bound of the cost of new nodes in the last scheduling run, in $/h.",
            "controller",
        )  # fmt: skip
        self._eligible = gauge(
            f"{disruption}_eligible_nodes",
            "Nodes eligible for disruption, by disruption reason.",
            "reason",
        )
        self._reboots = counter(
            "karpenter_nodes_reboots_total", "Reboots of nodes for repair, by result.", "result"
        )
        self._reboot_duration = histogram(
            "karpenter_nodes_reboot_duration_seconds",
            "Duration of a reboot from its request to its result, in seconds.",
            "result",
            buckets=REBOOTS,
        )
        self._reboot_recovery = histogram(
            "karpenter_nodes_reboot_recovery_duration_seconds",
            "Time from the reboot of an instance until its node was Ready again, in seconds.",
            buckets=REBOOTS,
        )
        self._deletion_cost_nodes = gauge(
            "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
            "Nodes with at least one pod whose pod-deletion-cost annotation the last run changed.",
            "nodepool",
        )  # fmt: skip
        self._deletion_costs = counter(
            "karpenter_pod_deletion_cost_pod_annotation_writes_total",
            "Attempts to write the pod-deletion-cost annotation of a pod, by result.",
            "result",
        )  # fmt: skip
        self._terminate_first = counter(
            f"{disruption}_terminate_first_decisions_total",
            "Disruption commands that terminate nodes before their replacement is launched, "
            "by cause: static-at-limit or no-reserved-capacity.",
            "nodepool", "reason", "terminate_first_reason",
        )  # fmt: skip
        self._decisions = counter(
            f"{disruption}_decisions_total", "Disruption commands that began.", *decision
        )
        self._decisions_by_pool = counter(
            f"{disruption}_decisions_by_nodepool_total",
            "Disruption commands that began, by NodePool of their nodes.",
            "nodepool", *decision,
        )  # fmt: skip
        self._failures = counter(
            f"{disruption}_queue_failures_total",
            "Disruption commands that did not disrupt all of their nodes.",
            *decision,
        )
        self._evaluation = histogram(
            f"{disruption}_decision_evaluation_duration_seconds",
            "Duration of disruption decisions in seconds.",
            "reason", "consolidation_type",
        )  # fmt: skip
        self._failed_validations = counter(
            f"{disruption}_failed_validations_total",
            "Consolidation commands that failed validation.",
            "consolidation_type",
        )  # fmt: skip
        self._timeouts = counter(
            f"{disruption}_consolidation_timeouts_total",
            "Number of times consolidation reached its timeout (DISRUPTION_TIME_LIMIT).",
            "consolidation_type",
        )  # fmt: skip
        for kind in ("multi", "single"):
            self._timeouts.labels(kind)
        verdict_labels = ("decision", "nodepool", "policy")
        self._scores = histogram(
            "karpenter_consolidation_score",
            "Scores of consolidation commands under the Balanced policy.",
            *verdict_labels, buckets=(0.1, 0.25, 0.33, 0.5, 1, 2, 5, 10),
        )  # fmt: skip
        self._moves = counter(
            "karpenter_consolidation_moves_total",
            "Consolidation commands approved or rejected, by consolidation policy.",
            *verdict_labels,
        )
        self._advised = counter(
            "joiner_disruption_advised_total",
            "Disruption commands that the mode recommend or observe does not begin at once.",
            "mode", *decision,
        )  # fmt: skip
        self._advised_nodes = gauge(
            "joiner_disruption_advised_nodes",
            "Nodes whose disruption the mode recommend or observe prevents now.",
            "mode",
        )
        self._advised_saving = gauge(
            "joiner_disruption_advised_saving_dollars_per_hour",
            "Saving in $/h of the disruptions that the mode recommend or observe prevents now.",
            "mode",
        )
        self._last_check = gauge(
            "joiner_disruption_last_look_timestamp_seconds",
            "Unix time of the last consolidation pass that evaluated every node without a timeout.",
        )
        self._cluster_cost = gauge(
            "joiner_cluster_cost_dollars_per_hour",
            "Cost of all nodes in $/h when consolidation last found nothing to do.",
        )
        self._cluster_bound = gauge(
            "joiner_cluster_lower_bound_dollars_per_hour",
            "Lower bound in $/h of the cost of nodes for all pods, when consolidation last found "
            "nothing to do.",
        )
        self._history_decisions = gauge(
            "joiner_disruption_history_decisions",
            "Disruption commands that ended, by outcome. The history survives restarts.",
            "outcome",
        )
        self._history_saving = gauge(
            "joiner_disruption_history_saving_dollars_per_hour",
            "Sum of the savings of all commands in $/h: predicted, and realized after an hour and "
            "a day.",
            "when",
        )  # fmt: skip
        self._history_pods = gauge(
            "joiner_disruption_history_pods",
            "Pods that disruption commands evicted (moved), and their successors that run "
            "(running).",
            "outcome",
        )
        self._history_lost = gauge(
            "joiner_disruption_history_replacements_disrupted",
            "Replacements that were deleted within a day of the end of their disruption command.",
        )
        self._allowed = gauge(
            "karpenter_nodepools_allowed_disruptions",
            "Nodes that budgets allow to be disrupted now.",
            "nodepool", "reason",
        )  # fmt: skip
        self._consuming = gauge(
            "karpenter_nodepools_nodes_consuming_budgets",
            "Nodes that count against budgets: not ready, or being disrupted.",
            "nodepool", "reason",
        )  # fmt: skip
        self._messages = counter(
            "karpenter_interruption_received_messages_total",
            "Count of messages received from the SQS queue, by message type.", "message_type",
        )  # fmt: skip
        self._messages_deleted = counter(
            "karpenter_interruption_deleted_messages_total",
            "Count of messages deleted from the SQS queue.",
        )
        self._message_wait = histogram(
            "karpenter_interruption_message_queue_duration_seconds",
            "Time between sending a message to the SQS queue and reading it, in seconds.",
        )
        self._unhealthy_statuses = counter(
            "karpenter_interruption_instance_status_unhealthy_total",
            "Count of instances whose EC2 status check failed, once per failure.",
            "category",
        )  # fmt: skip
        self._cloud_calls = histogram(
            "karpenter_cloudprovider_duration_seconds",
            "Duration of cloud provider calls in seconds.",
            "controller", "method", "provider",
        )  # fmt: skip
        self._cloud_errors = counter(
            "karpenter_cloudprovider_errors_total", "Cloud provider calls that failed.",
            "controller", "method", "provider", "error", "nodepool",
        )  # fmt: skip

    def _make_runtime_metrics(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        runtime, queue = "controller_runtime", ("name", "controller")
        self._reconciles = counter(
            f"{runtime}_reconcile_total", "Reconciliations by result.", "controller", "result"
        )
        self._reconcile_errors = counter(
            f"{runtime}_reconcile_errors_total", "Reconciliations that failed.", "controller"
        )
        self._reconcile_time = histogram(
            f"{runtime}_reconcile_time_seconds",
            "Duration of reconciliations in seconds.", "controller",
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self._active = gauge(
            f"{runtime}_active_workers", "Reconciliations in progress.", "controller"
        )
        self._most_workers = gauge(
            f"{runtime}_max_concurrent_reconciles",
            "Maximum number of concurrent reconciliations.",
            "controller",
        )
        self._queue_adds = counter("workqueue_adds_total", "Objects added to work queues.", *queue)
        self._queue_retries = counter(
            "workqueue_retries_total", "Objects added to work queues again after a failure.", *queue
        )
        self._queue_depth = gauge("workqueue_depth", "Objects in work queues.", *queue)
        self._queue_wait = histogram(
            "workqueue_queue_duration_seconds",
            "How long objects waited in work queues, in seconds.", *queue,
            buckets=(0.001, 0.01, 0.1, 1, 10, 100),
        )  # fmt: skip
        # Each reconciliation needs these, and `labels` takes a lock and checks the values.
        self._active_of = cache(self._active.labels)
        self._reconciles_of = cache(self._reconciles.labels)
        self._reconcile_time_of = cache(self._reconcile_time.labels)
        self._queue_adds_of = cache(self._queue_adds.labels)
        self._queue_depth_of = cache(self._queue_depth.labels)
        self._queue_wait_of = cache(self._queue_wait.labels)
        self._requests = counter(
            "client_go_request_total",
            "Requests to the API server by HTTP status code.",
            "code",
            "method",
        )
        self._leader = gauge(
            "leader_election_master_status", "1 if this replica is the leader, otherwise 0.", "name"
        )
        self._events_dropped = counter(
            "joiner_events_dropped_total",
            "Kubernetes events dropped because the queue was full.",
            "reason",
        )

    def _counter(self, name: str, text: str, *names: str) -> Counter:
        return Counter(name, text, names, registry=self.registry)

    def _gauge(self, name: str, text: str, *names: str) -> Gauge:
        return Gauge(name, text, names, registry=self.registry)

    def _summary(self, name: str, text: str, *names: str) -> QuantileSummary:
        return QuantileSummary(name, text, names, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *names: str, buckets: tuple[float, ...] | list[int] = DURATIONS
    ) -> Histogram:
        return Histogram(name, text, names, registry=self.registry, buckets=buckets)


def _dynamic_resources(pod: Pod) -> str:
    """Return the label value: whether a pod requests devices through ResourceClaims."""
    return "true" if pod.spec.resource_claims else "false"


def _observe_since(histogram: Histogram, pool: str, since: datetime | None, now: datetime) -> None:
    if since is not None:
        histogram.labels(pool).observe((now - since).total_seconds())


def _decision(command: Command) -> tuple[str, str, str]:
    """Return a command's labels: decision, reason and type of consolidation."""
    return command.decision, command.reason.label, command.consolidation_type


def _snake(name: str) -> str:
    """Return a value in the form of metric labels: `when_empty` for `WhenEmpty`."""
    return _CAPITAL.sub("_", name).lower()


def _termination_mode(claim: NodeClaim) -> str:
    """Return whether pods may delay termination: always, for the grace period, or never."""
    period = durations.parse(claim.spec.termination_grace_period)
    return "graceful" if period is None else _mode(period)


def _mode(period: timedelta) -> str:
    return "eventual" if period else "forceful"
