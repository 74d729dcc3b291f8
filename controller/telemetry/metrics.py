"""Every metric: Karpenter's names, labels and buckets, in a registry of its own.

Reconcilers tell what they did by a method per fact (`claim_created`, `evicted`, …) and
know no metric's name. What is a state rather than an event (nodes, pools, whether the
mirror is synced) is read from the cluster at the moment of a scrape: see `clusterstate`,
and `details` for what grows with the cluster.
"""

from __future__ import annotations

import contextlib
import platform
import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from controller.apis import conditions, durations, labels
from controller.apis.conditions import Condition
from controller.apis.disruption import Balance
from controller.apis.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL, Kind
from controller.apis.nodeclaim import INSTANCE_TERMINATING, NodeClaim
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.cloudprovider.provider import Notice
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.modes import Mode
from controller.scheduling.results import Results

# A second series per counter, with the time of its birth, doubles what a scrape costs.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

DURATIONS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
    120, 150, 300, 450, 600,
)  # fmt: skip
"""Buckets of durations, in seconds."""

DAY = 86_400
LIFETIMES = (900, 1800, 3600, 7200, 14_400, 28_800, 43_200, DAY, *(DAY * n for n in (
    2, 3, 5, 7, 10, 15, 20, 25, 30,
)))  # fmt: skip

GO_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Where Go's Prometheus client puts buckets when nobody says."""

CONDITIONED: tuple[Kind[Any], ...] = (NODE_POOL, NODE_CLAIM, EC2_NODE_CLASS, NODE)
"""Kinds whose conditions are followed."""

DISRUPTED = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")


_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class Metrics:
    """What the controller counts and measures, in `registry`.

    `detailed` adds what takes more series than a small cluster's monitoring likes.
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
            "karpenter_build_info", "What runs; goversion names the language instead of Go's.",
            "version", "goversion", "goarch", "commit",
        )  # fmt: skip
        build.labels(version, f"python{platform.python_version()}", platform.machine(), "").set(1)

    # Nodes and claims.

    def claim_created(self, claim: NodeClaim, reason: str) -> None:
        """A NodeClaim was written."""
        relaxed = claim.metadata.annotations.get(labels.MIN_VALUES_RELAXED, "false")
        self._claims_created.labels(reason, _pool(claim), relaxed).inc()

    def disrupted(self, claim: NodeClaim, reason: str, *, pods: int = 0, policy: str = "") -> None:
        """A NodeClaim is being ended before its time, for a reason in snake_case.

        `pods` of its node will need another one; `policy` is its pool's, as users write it, where
        that is what ends it.
        """
        capacity_type = claim.metadata.labels.get(labels.CAPACITY_TYPE, "")
        values = (reason, _pool(claim), capacity_type, _snake(policy), _termination_mode(claim))
        self._claims_disrupted.labels(*values).inc()
        self._pods_disrupted.labels(*values).inc(pods)

    def repaired(self, claim: NodeClaim, condition: str) -> None:
        """A NodeClaim is being ended because a condition of its node says that it is broken."""
        capacity_type = claim.metadata.labels.get(labels.CAPACITY_TYPE, "")
        self._claims_repaired.labels(
            _snake(condition), _pool(claim), capacity_type, claim.status.image_id
        ).inc()

    def terminated(self, claim: NodeClaim, now: datetime) -> None:
        """A NodeClaim is gone, its instance with it."""
        own = claim.metadata.labels
        self._claims_terminated.labels(
            _pool(claim), own.get(labels.CAPACITY_TYPE, ""), own.get(labels.ZONE, "")
        ).inc()
        _observe_since(
            self._claim_termination, _pool(claim), claim.metadata.deletion_timestamp, now
        )
        terminating = conditions.find(claim.status.conditions, INSTANCE_TERMINATING)
        since = terminating.last_transition_time if terminating else None
        _observe_since(self._instance_termination, _pool(claim), since, now)

    def node_created(self, claim: NodeClaim) -> None:
        """A Node has registered."""
        zone = claim.metadata.labels.get(labels.ZONE, "")
        self._nodes_created.labels(_pool(claim), zone).inc()

    def drained(self, node: Node, reason: str, *, pods: int = 0) -> None:
        """A Node has no pods left that stand in the way; `pods` of them had to go for it."""
        self._nodes_drained.labels(_pool(node)).inc()
        self._pods_drained.labels(reason).inc(pods)

    def node_terminated(self, node: Node, now: datetime) -> None:
        """A Node's finalizer is off."""
        self._nodes_terminated.labels(_pool(node), node.metadata.labels.get(labels.ZONE, "")).inc()
        if node.metadata.deletion_timestamp is not None:
            waited = (now - node.metadata.deletion_timestamp).total_seconds()
            self._node_termination.labels(_pool(node)).observe(waited)
        _observe_since(self._node_lifetime, _pool(node), node.metadata.creation_timestamp, now)

    def evicted(self, code: int) -> None:
        """The API server answered an eviction with an HTTP status."""
        self._evictions.labels(str(code)).inc()

    def pod_changed(self, before: Pod | None, after: Pod) -> None:
        """A pod that was known has changed: note when it was bound, and when it became ready."""
        created = after.metadata.creation_timestamp
        if before is None or created is None:
            return
        for kind, histogram in (("PodScheduled", self._pod_bound), ("Ready", self._pod_startup)):
            reached = conditions.find(after.status.conditions, kind)
            if reached is None or not reached.is_true or reached.last_transition_time is None:
                continue
            if not conditions.is_true(before.status.conditions, kind):
                histogram.observe((reached.last_transition_time - created).total_seconds())

    def conditions_changed(
        self, kind: Kind[Any], before: Sequence[Condition], after: Sequence[Condition]
    ) -> None:
        """An object of ours, or a Node, has other conditions than before."""
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
        """Time a solve."""
        with self._scheduling.labels(controller).time():
            yield

    def solved(self, results: Results, controller: str = "provisioner") -> None:
        """A solve has an answer: what it leaves unplaced, what it costs, what it might have."""
        self._unschedulable.labels(controller).set(len(results.unschedulable))
        self._cost.labels(controller).set(results.cost)
        self._lower_bound.labels(controller).set(results.lower_bound)

    def eligible(self, reason: Reason, count: int) -> None:
        """This many nodes could be disrupted for a reason."""
        self._eligible.labels(reason.label).set(count)

    def allowed_disruptions(self, node_pool: str, reason: Reason, allowed: int) -> None:
        """A pool's budgets let this many of its nodes go now."""
        self._allowed.labels(node_pool, reason.label).set(allowed)

    def consuming_budgets(self, node_pool: str, reason: Reason, nodes: int) -> None:
        """This many of a pool's nodes are not ready or on their way out."""
        self._consuming.labels(node_pool, reason.label).set(nodes)

    def decided(self, command: Command) -> None:
        """A command to disrupt nodes is carried out."""
        decision = _decision(command)
        self._decisions.labels(*decision).inc()
        pools = Tally(candidate.node_pool.metadata.name for candidate in command.candidates)
        for pool in pools:
            self._decisions_by_pool.labels(pool, *decision).inc()

    @contextlib.contextmanager
    def deciding(self) -> Iterator[Callable[[Decision], None]]:
        """Time a decision what to disrupt; yields what tells of its outcome."""
        began = time.perf_counter()

        def decided(decision: Decision) -> None:
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

        yield decided

    def looked_at_all(self, now: datetime) -> None:
        """Every node has been looked at for something cheaper."""
        self._last_look.set(now.timestamp())

    def weighed(self, cost: float, lower_bound: float) -> None:
        """A cluster in which nothing is left to do costs so much, and at least that, in $/h."""
        self._cluster_cost.set(cost)
        self._cluster_bound.set(min(cost, lower_bound))

    def not_confirmed(self, command: Command) -> None:
        """A command was given up, because the cluster had changed before it was begun."""
        self._failed_validations.labels(command.consolidation_type).inc()

    def advised(self, command: Command, mode: Mode) -> None:
        """A command was found that this mode does not let be carried out at once."""
        self._advised.labels(mode.value, *_decision(command)).inc()

    def advice(self, mode: Mode, *, nodes: int, saving: float) -> None:
        """So many nodes would go now if this mode let them, which would save so many $/h."""
        self._advised_nodes.labels(mode.value).set(nodes)
        self._advised_saving.labels(mode.value).set(saving)

    def ledger(self, balance: Balance) -> None:
        """All decisions so far have brought this."""
        for outcome, count in (("done", balance.done), ("failed", balance.failed)):
            self._ledger_decisions.labels(outcome).set(count)
        for when, saving in (
            ("predicted", balance.predicted),
            ("hour", balance.after_hour),
            ("day", balance.after_day),
        ):
            self._ledger_saving.labels(when).set(saving)
        for outcome, count in (("moved", balance.moved), ("running", balance.running)):
            self._ledger_pods.labels(outcome).set(count)
        self._ledger_lost.set(balance.replacements_disrupted)

    def failed(self, command: Command) -> None:
        """A command to disrupt nodes has ended, and some of them had to be let stay."""
        self._failures.labels(*_decision(command)).inc()

    def notice_received(self, notice: Notice, now: datetime) -> None:
        """The cloud has said something about an instance."""
        self._notices.labels(notice.kind).inc()
        if notice.sent_at is not None:
            self._notice_wait.observe(max((now - notice.sent_at).total_seconds(), 0))

    def notice_deleted(self) -> None:
        """A notice has been dealt with."""
        self._notices_deleted.inc()

    @contextlib.contextmanager
    def cloud_call(self, controller: str, method: str, provider: str) -> Iterator[None]:
        """Time a call to the cloud, and count it when it fails."""
        with self._cloud_calls.labels(controller, method, provider).time():
            try:
                yield
            except Exception as exc:
                error = type(exc).__name__
                self._cloud_errors.labels(controller, method, provider, error).inc()
                raise

    # The machinery.

    @contextlib.contextmanager
    def reconcile(self, controller: str) -> Iterator[Callable[[str], None]]:
        """Time one pass of a reconciler; yields what sets its result.

        Results are `success`, `requeue_after` and `error`.
        """
        result = "success"

        def ended(how: str) -> None:
            nonlocal result
            result = how

        self._active.labels(controller).inc()
        began = time.perf_counter()
        try:
            yield ended
        finally:
            self._reconcile_time.labels(controller).observe(time.perf_counter() - began)
            self._active.labels(controller).dec()
            self._reconciles.labels(controller, result).inc()
            if result == "error":
                self._reconcile_errors.labels(controller).inc()

    def workers(self, controller: str, most: int) -> None:
        """A reconciler may work on this many objects at once."""
        self._most_workers.labels(controller).set(most)

    def queued(self, controller: str, depth: int, *, retried: bool = False) -> None:
        """A key was added to a queue, which now holds this many."""
        self._queue_adds.labels(controller, controller).inc()
        self._queue_depth.labels(controller, controller).set(depth)
        if retried:
            self._queue_retries.labels(controller, controller).inc()

    def dequeued(self, controller: str, depth: int, waited: float) -> None:
        """A key was taken from a queue after so many seconds."""
        self._queue_depth.labels(controller, controller).set(depth)
        self._queue_wait.labels(controller, controller).observe(waited)

    def requested(self, method: str, status: int) -> None:
        """The API server was asked; 0 is no answer."""
        self._requests.labels(str(status) if status else "<error>", method).inc()

    def leads(self, lease: str, is_leader: bool) -> None:
        """This process holds the lease, or does not."""
        self._leader.labels(lease).set(1 if is_leader else 0)

    def event_dropped(self, reason: str) -> None:
        """A Kubernetes event was not written: too many were waiting."""
        self._events_dropped.labels(reason).inc()

    # How they are made.

    def _make_node_metrics(self) -> None:
        counter, histogram = self._counter, self._histogram
        claims, nodes, pods = "karpenter_nodeclaims", "karpenter_nodes", "karpenter_pods"
        self._claims_created = counter(
            f"{claims}_created_total", "NodeClaims written.",
            "reason", "nodepool", "min_values_relaxed",
        )  # fmt: skip
        self._claims_terminated = counter(
            f"{claims}_terminated_total", "NodeClaims gone.", "nodepool", "capacity_type", "zone"
        )
        self._claims_disrupted = counter(
            f"{claims}_disrupted_total", "NodeClaims ended before their time.", *DISRUPTED
        )
        self._claims_repaired = counter(
            f"{claims}_unhealthy_disrupted_total",
            "NodeClaims ended because their node was unhealthy for too long.",
            "condition", "nodepool", "capacity_type", "image_id",
        )  # fmt: skip
        self._pods_disrupted = counter(
            f"{pods}_disruption_initiated_total",
            "Pods on nodes that were ended before their time, daemons and static ones apart.",
            *DISRUPTED,
        )
        self._claim_termination = histogram(
            f"{claims}_termination_duration_seconds", "From deletion to the end of a NodeClaim.",
            "nodepool", buckets=[2**n for n in range(12)],
        )  # fmt: skip
        self._instance_termination = histogram(
            f"{claims}_instance_termination_duration_seconds",
            "From the first call to terminate an instance until it was gone.",
            "nodepool", buckets=[2**n for n in range(11)],
        )  # fmt: skip
        self._nodes_created = counter(
            f"{nodes}_created_total", "Nodes registered.", "nodepool", "zone"
        )
        self._nodes_terminated = counter(
            f"{nodes}_terminated_total", "Nodes gone.", "nodepool", "zone"
        )
        self._nodes_drained = counter(f"{nodes}_drained_total", "Nodes drained.", "nodepool")
        self._node_termination = self._summary(
            f"{nodes}_termination_duration_seconds", "From deletion to the end of a Node.",
            "nodepool",
        )  # fmt: skip
        self._node_lifetime = histogram(
            f"{nodes}_lifetime_duration_seconds", "From creation to the end of a Node.",
            "nodepool", buckets=LIFETIMES,
        )  # fmt: skip
        self._evictions = counter(
            f"{pods}_eviction_requests_total", "Evictions asked for, by the answer.", "code"
        )
        self._pods_drained = counter(
            f"{pods}_drained_total", "Pods that had to leave their node.", "reason"
        )
        self._pod_bound = histogram(
            f"{pods}_bound_duration_seconds", "From creation to binding of a pod."
        )
        self._pod_startup = self._summary(
            f"{pods}_startup_duration_seconds", "From creation to readiness of a pod."
        )

    def _make_condition_metrics(self) -> None:
        self._transitions = {
            kind: self._counter(
                f"operator_{kind.name.lower()}_status_condition_transitions_total",
                "Conditions that took another status.", "type", "status", "reason",
            )
            for kind in CONDITIONED
        }  # fmt: skip
        self._transition_times = {
            kind: self._histogram(
                f"operator_{kind.name.lower()}_status_condition_transition_seconds",
                "How long a condition had a status.", "type", "status", buckets=GO_BUCKETS,
            )
            for kind in CONDITIONED
            if self._detailed
        }  # fmt: skip

    def _make_decision_metrics(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        disruption = "karpenter_voluntary_disruption"
        decision = ("decision", "reason", "consolidation_type")
        self._scheduling = histogram(
            "karpenter_scheduler_scheduling_duration_seconds", "A solve.", "controller"
        )
        self._unschedulable = gauge(
            "karpenter_scheduler_unschedulable_pods_count", "Pods the last solve left over.",
            "controller",
        )  # fmt: skip
        self._cost = gauge(
            "joiner_scheduler_cost_dollars_per_hour", "New nodes of the last solve.", "controller"
        )
        self._lower_bound = gauge(
            "joiner_scheduler_lower_bound_dollars_per_hour",
            "What no set of new nodes could cost less than, in the last solve.", "controller",
        )  # fmt: skip
        self._eligible = gauge(
            f"{disruption}_eligible_nodes", "Nodes that could be disrupted.", "reason"
        )
        self._decisions = counter(
            f"{disruption}_decisions_total", "Commands carried out.", *decision
        )
        self._decisions_by_pool = counter(
            f"{disruption}_decisions_by_nodepool_total", "Commands carried out.",
            "nodepool", *decision,
        )  # fmt: skip
        self._failures = counter(
            f"{disruption}_queue_failures_total", "Commands that could not be finished.", *decision
        )
        self._evaluation = histogram(
            f"{disruption}_decision_evaluation_duration_seconds", "Decisions what to disrupt.",
            "reason", "consolidation_type",
        )  # fmt: skip
        self._failed_validations = counter(
            f"{disruption}_failed_validations_total",
            "Commands that no longer stood when they were to be carried out.",
            "consolidation_type",
        )  # fmt: skip
        self._timeouts = counter(
            f"{disruption}_consolidation_timeouts_total",
            "Looks for something to consolidate that were out of time.", "consolidation_type",
        )  # fmt: skip
        for kind in ("multi", "single"):
            self._timeouts.labels(kind)
        weighed = ("decision", "nodepool", "policy")
        self._scores = histogram(
            "karpenter_consolidation_score", "Scores of consolidations of balanced pools.",
            *weighed, buckets=(0.1, 0.25, 0.33, 0.5, 1, 2, 5, 10),
        )  # fmt: skip
        self._moves = counter(
            "karpenter_consolidation_moves_total", "Consolidations that were weighed.", *weighed
        )
        self._advised = counter(
            "joiner_disruption_advised_total",
            "Commands that the mode does not let be carried out at once.", "mode", *decision,
        )  # fmt: skip
        self._advised_nodes = gauge(
            "joiner_disruption_advised_nodes", "Nodes that would go now.", "mode"
        )
        self._advised_saving = gauge(
            "joiner_disruption_advised_saving_dollars_per_hour", "What that would save.", "mode"
        )
        self._last_look = gauge(
            "joiner_disruption_last_look_timestamp_seconds",
            "When every node was last looked at, in time; its age is time() less this.",
        )
        self._cluster_cost = gauge(
            "joiner_cluster_cost_dollars_per_hour", "Nodes, when nothing was left to consolidate."
        )
        self._cluster_bound = gauge(
            "joiner_cluster_lower_bound_dollars_per_hour",
            "What no arrangement of the pods costs less than, at that moment.",
        )
        self._ledger_decisions = gauge(
            "joiner_ledger_decisions",
            "Commands that have ended, since the ledger began.",
            "outcome",
        )
        self._ledger_saving = gauge(
            "joiner_ledger_saving_dollars_per_hour",
            "Sum of what commands were to save, and had saved after an hour and a day.", "when",
        )  # fmt: skip
        self._ledger_pods = gauge(
            "joiner_ledger_pods", "Pods that commands moved, and those that ran again.", "outcome"
        )
        self._ledger_lost = gauge(
            "joiner_ledger_replacements_disrupted",
            "Nodes made in the place of others that had gone within a day.",
        )
        self._allowed = gauge(
            "karpenter_nodepools_allowed_disruptions", "Nodes that budgets let go now.",
            "nodepool", "reason",
        )  # fmt: skip
        self._consuming = gauge(
            "karpenter_nodepools_nodes_consuming_budgets", "Nodes that count against budgets.",
            "nodepool", "reason",
        )  # fmt: skip
        self._notices = counter(
            "karpenter_interruption_received_messages_total", "Notices of the cloud.",
            "message_type",
        )  # fmt: skip
        self._notices_deleted = counter(
            "karpenter_interruption_deleted_messages_total", "Notices dealt with."
        )
        self._notice_wait = histogram(
            "karpenter_interruption_message_queue_duration_seconds",
            "From sending to reading of a notice.",
        )
        self._cloud_calls = histogram(
            "karpenter_cloudprovider_duration_seconds", "Calls to the cloud.",
            "controller", "method", "provider",
        )  # fmt: skip
        self._cloud_errors = counter(
            "karpenter_cloudprovider_errors_total", "Calls to the cloud that failed.",
            "controller", "method", "provider", "error",
        )  # fmt: skip

    def _make_runtime_metrics(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        runtime, queue = "controller_runtime", ("name", "controller")
        self._reconciles = counter(
            f"{runtime}_reconcile_total", "Passes of a reconciler.", "controller", "result"
        )
        self._reconcile_errors = counter(
            f"{runtime}_reconcile_errors_total", "Passes that failed.", "controller"
        )
        self._reconcile_time = histogram(
            f"{runtime}_reconcile_time_seconds", "Passes of a reconciler.", "controller",
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self._active = gauge(f"{runtime}_active_workers", "Passes under way.", "controller")
        self._most_workers = gauge(
            f"{runtime}_max_concurrent_reconciles", "Passes at once, at most.", "controller"
        )
        self._queue_adds = counter("workqueue_adds_total", "Keys added.", *queue)
        self._queue_retries = counter("workqueue_retries_total", "Keys added again.", *queue)
        self._queue_depth = gauge("workqueue_depth", "Keys that wait.", *queue)
        self._queue_wait = histogram(
            "workqueue_queue_duration_seconds", "From adding to taking a key.", *queue,
            buckets=(0.001, 0.01, 0.1, 1, 10, 100),
        )  # fmt: skip
        self._requests = counter(
            "client_go_request_total", "Answers of the API server.", "code", "method"
        )
        self._leader = gauge("leader_election_master_status", "1 while leading.", "name")
        self._events_dropped = counter(
            "joiner_events_dropped_total", "Events not written, too many waiting.", "reason"
        )

    def _counter(self, name: str, text: str, *names: str) -> Counter:
        return Counter(name, text, names, registry=self.registry)

    def _gauge(self, name: str, text: str, *names: str) -> Gauge:
        return Gauge(name, text, names, registry=self.registry)

    def _summary(self, name: str, text: str, *names: str) -> Summary:
        return Summary(name, text, names, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *names: str, buckets: tuple[float, ...] | list[int] = DURATIONS
    ) -> Histogram:
        return Histogram(name, text, names, registry=self.registry, buckets=buckets)


def _pool(owned: NodeClaim | Node) -> str:
    return owned.metadata.labels.get(labels.NODEPOOL, "")


def _observe_since(histogram: Histogram, pool: str, since: datetime | None, now: datetime) -> None:
    if since is not None:
        histogram.labels(pool).observe((now - since).total_seconds())


def _decision(command: Command) -> tuple[str, str, str]:
    """Return a command's labels: decision, reason and type of consolidation."""
    return command.decision, command.reason.label, command.consolidation_type


def _snake(name: str) -> str:
    """Return `when_empty` for `WhenEmpty`: how metrics write what users write."""
    return _CAPITAL.sub("_", name).lower()


def _termination_mode(claim: NodeClaim) -> str:
    """Return whether pods may hold the node up: always, for its grace period, or not at all."""
    period = durations.parse(claim.spec.termination_grace_period)
    if period is None:
        return "graceful"
    return "eventual" if period else "forceful"
