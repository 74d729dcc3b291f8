"""Break disruption deliberately, one rule at a time, and check that a test fails.

    python -m tests.disruption.mutate [--only NAME]

The checkout is copied to a temporary directory and modified there. Prints a table. The exit code is
1 if no test reveals one of the mutations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutations import Mutation, broken, red_test, try_each

TESTS = ("tests/disruption", "tests/reconcilers", "tests/state")

PURE, LOOP = "controller/disruption", "controller/reconcilers/disruption"
MUTATIONS = (
    Mutation(
        "a budget is not spent",
        f"{PURE}/budgets.py",
        "self.remaining[pool] -= 1",
        "self.remaining[pool] -= 0",
    ),
    Mutation(
        "percentages round down",
        f"{PURE}/budgets.py",
        "math.ceil(_number(budget.nodes[:-1], budget)",
        "math.floor(_number(budget.nodes[:-1], budget)",
    ),
    Mutation(
        "the reasons of a budget are not read",
        f"{PURE}/budgets.py",
        "    return not budget.reasons or reason.value in budget.reasons",
        "    return True",
    ),
    Mutation(
        "the duration of a budget does not end",
        f"{PURE}/budgets.py",
        "return opened <= now",
        "return True",
    ),
    Mutation(
        "deleting nodes do not consume a budget",
        f"{PURE}/budgets.py",
        "nodes=nodes, now=now) - consuming)",
        "nodes=nodes, now=now))",
    ),
    Mutation(
        "a percentage of drifted nodes is one of their number alone",
        f"{PURE}/budgets.py",
        "if reason is Reason.DRIFTED:",
        "if False:",
    ),
    Mutation(
        "a spread over nodes always compares with an empty node",
        f"{PURE}/methods/consolidation/plan.py",
        "least = self._least_on_nodes(rule) if rule.is_host_spread else 0",
        "least = 0",
    ),
    Mutation(
        "a PodDisruptionBudget is not read",
        "controller/state/evictions.py",
        "if budget.status.disruptions_allowed <= 0:",
        "if budget.status.disruptions_allowed < 0:",
    ),
    Mutation(
        "only pods of DaemonSets are daemon pods",
        "controller/state/pods.py",
        " or custom_daemon_controller(pod) is not None",
        "",
    ),
    Mutation(
        "daemons of custom controllers use no capacity",
        "controller/scheduling/catalog/daemons.py",
        "(*result, *_custom_daemons(snapshot))",
        "(*result,)",
    ),
    Mutation(
        "labels that older nodes lack are drift",
        f"{PURE}/methods/drift.py",
        "if lacking_labels(claim, pool) else {}",
        "if False else {}",
    ),
    Mutation(
        "a pod's do-not-disrupt is not read",
        f"{PURE}/candidates.py",
        "if forbids_disruption(p, now)",
        "if forbids_disruption(p, now) and False",
    ),
    Mutation(
        "a node's lifecycle conditions are not read",
        f"{PURE}/candidates.py",
        "(event := lifecycle_event(state.node))",
        "(event := lifecycle_event(state.node)) and False",
    ),
    Mutation(
        "pods are moved to a node that is being drained",
        "controller/scheduling/nodes/existing.py",
        "if not node.spec.unschedulable and not lifecycle_event(node):",
        "if not node.spec.unschedulable:",
    ),
    Mutation(
        "pods of a higher priority leave for a resize",
        f"{PURE}/resizing.py",
        "and _priority(pod) <= highest",
        "and True",
    ),
    Mutation(
        "more pods leave for a resize than their budget allows",
        f"{PURE}/resizing.py",
        "if all(spent[key] < allowed for key, allowed in budgets.items()):",
        "if True:",
    ),
    Mutation(
        "superfluous pods leave for a resize",
        f"{PURE}/resizing.py",
        "if _covers(rest, sizes, missing):",
        "if False:",
    ),
    Mutation(
        "a node's do-not-disrupt is not read",
        f"{PURE}/candidates.py",
        'state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"',
        'state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "never"',
    ),
    Mutation(
        "a nominated node is disrupted",
        f"{PURE}/candidates.py",
        "if state.nominated:",
        "if state.nominated and not state.initialized:",
    ),
    Mutation(
        "a node whose command failed is retried at once",
        f"{PURE}/candidates.py",
        "if state.name in problem.backed_off:",
        "if state.name in problem.backed_off and not state.initialized:",
    ),
    Mutation(
        "a node with buffer capacity is empty",
        f"{PURE}/methods/emptiness.py",
        "return candidate.buffered or ",
        "return ",
    ),
    Mutation(
        "consolidateAfter is not waited for",
        f"{PURE}/methods/consolidation/method.py",
        "if not conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE):",
        "if conditions.find(candidate.claim.status.conditions, CONSOLIDATABLE) is None and False:",
    ),
    Mutation(
        "WhenEmpty consolidates",
        f"{PURE}/methods/consolidation/method.py",
        "if disruption.consolidation_policy == WHEN_EMPTY:",
        'if disruption.consolidation_policy == "":',
    ),
    Mutation(
        "volumes on the disk of a node are not read",
        f"{PURE}/methods/consolidation/method.py",
        "    if candidate.anchored:",
        "    if not candidate.price:",
    ),
    Mutation(
        "spot becomes spot with few types to choose from",
        f"{PURE}/methods/consolidation/replacements.py",
        "SPOT_TO_SPOT_TYPES = 15",
        "SPOT_TO_SPOT_TYPES = 1",
    ),
    Mutation(
        "pods are sent to nodes that are still starting",
        f"{PURE}/model.py",
        "[node.initialized and node.name not in self._closed for node in nodes.all]",
        "[node.name not in self._closed for node in nodes.all]",
    ),
    Mutation(
        "pods are moved to nodes with recent pod changes",
        f"{PURE}/simulation.py",
        "closed=self._not_consolidatable,",
        "closed=NO_NODES,",
    ),
    Mutation(
        "pods move to nodes whose Jobs end soon",
        f"{PURE}/methods/consolidation/destinations.py",
        "if is_reschedulable(pod) and not is_of_job(pod)",
        "if is_reschedulable(pod)",
    ),
    Mutation(
        "the cost of a first step is not counted",
        f"{PURE}/methods/consolidation/budgeting.py",
        "new.price * steps * (STEP / HOUR) < saved",
        "saved > 0.0",
    ),
    Mutation(
        "the following steps of a plan are not validated",
        f"{PURE}/methods/consolidation/method.py",
        "sorted(command.whole.names - open_.keys())",
        "sorted(command.names - open_.keys())",
    ),
    Mutation(
        "a candidate is a destination for the pods of another",
        f"{PURE}/methods/consolidation/plan.py",
        "self._place(number, int(counts[number]), ~self.leaving)",
        "self._place(number, int(counts[number]), self.leaving | True)",
    ),
    Mutation(
        "a spread is not checked before pods move",
        f"{PURE}/methods/consolidation/plan.py",
        "        least = minimum(rule.group, counts[rule.universe].tolist())",
        "        least = float(counts.max(initial=0.0))",
    ),
    Mutation(
        "preferences are dropped without a price",
        f"{PURE}/methods/consolidation/preferenceprices.py",
        "    return amount(pod.metadata.annotations.get(labels.PREFERENCE_PRICE, of_pool))",
        "    return amount(pod.metadata.annotations.get(labels.PREFERENCE_PRICE, of_pool)) or 0.0",
    ),
    Mutation(
        "preferences have no price",
        f"{PURE}/methods/consolidation/evaluation.py",
        "            + (conceded.price_of(candidate) if conceded is not None else 0.0)\n",
        "",
    ),
    Mutation(
        "an outdated command is confirmed",
        f"{PURE}/methods/consolidation/method.py",
        "        return Confirmation(tuple(valid), rejected)",
        "        return Confirmation(tuple(commands), rejected)",
    ),
    Mutation(
        "replacements exceed the limits of their pool",
        f"{PURE}/methods/staticdrift.py",
        "        if now.surge >= count:\n            continue",
        "        if now.surge >= -9:\n            continue",
    ),
    Mutation(
        "a new image is not tried on one node first",
        f"{PURE}/methods/rollout.py",
        "    if proven > now:",
        "    if proven > now and not running:",
    ),
    Mutation(
        "a gang moves although one of its nodes stays",
        f"{PURE}/candidates.py",
        "    if stays is not None:\n        return unit.elsewhere",
        "    if stays is unit:\n        return unit.elsewhere",
    ),
    Mutation(
        "budgets admit a part of a gang",
        f"{PURE}/gangs.py",
        "if one.name not in admitted), None)",
        "if not admitted), None)",
    ),
    Mutation(
        "the restart of a gang costs as much as its cheapest node",
        f"{PURE}/methods/consolidation/evaluation.py",
        "return group.saving - sum(self.costs[name] for name in group.names)",
        "return group.saving - min(self.costs[name] for name in group.names)",
    ),
    Mutation(
        "drift replaces only the drifted nodes of a gang",
        f"{PURE}/methods/method.py",
        "if unit is None or unit.is_alone:",
        "if unit is None or unit.nodes:",
    ),
    Mutation(
        "the Balanced policy accepts everything",
        f"{PURE}/methods/consolidation/balance.py",
        "LEAST_SCORE = 0.5",
        "LEAST_SCORE = 0.0",
    ),
    Mutation(
        "consolidation does not wait for nodes that become consolidatable soon",
        f"{LOOP}/disruptor.py",
        "left = self._delay.remaining_delay(problem)",
        "left = timedelta(0)",
    ),
    Mutation(
        "commands are executed without validation",
        f"{LOOP}/disruptor.py",
        "            if left > timedelta(0):\n                self._proposed = decision, since\n",
        "            if left is None:\n                self._proposed = decision, since\n",
    ),
    Mutation(
        "nodes are deleted before their replacements are ready",
        f"{LOOP}/orchestration.py",
        "            if not conditions.is_true(known.status.conditions, INITIALIZED):",
        "            if known.metadata.is_deleting:",
    ),
    Mutation(
        "nodes are not tainted before they are deleted",
        f"{LOOP}/orchestration.py",
        "            await apply_patch(self.ports, node, tainted)\n",
        "            del tainted\n",
    ),
    Mutation(
        "nodes of a failed command stay tainted",
        f"{LOOP}/orchestration.py",
        "and not state.deleting and not _is_rebooted(state)",
        "and state.deleting and not _is_rebooted(state)",
    ),
    Mutation(
        "changes of a pool during a decision are not read",
        "controller/reconcilers/newnodes/writer.py",
        "if pool.spec.template != seen.spec.template:",
        "if pool.metadata.uid != seen.metadata.uid:",
    ),
    Mutation(
        "a lost replacement is not noticed",
        f"{LOOP}/orchestration.py",
        "            if known is None or known.metadata.is_deleting:",
        "            if known is None:\n                continue\n            if False:",
    ),
)


def find_evidence(checkout: Path, mutation: Mutation) -> str:
    """Return a test that fails with a mutation, or an empty string."""
    with broken(checkout, mutation):
        red = red_test(checkout, *TESTS)
    return f"`{red}`" if red else ""


def main(argv: Sequence[str]) -> int:
    """Try every mutation, print the table and return the exit code."""
    return try_each("tests.disruption.mutate", __doc__, MUTATIONS, find_evidence, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
