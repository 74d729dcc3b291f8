"""Break the engine deliberately, one rule at a time, and check that kube-scheduler notices.

    python -m bench.kubescheduler.mutate [--only NAME]

The mutations are those of `bench.parity.mutate`, and some about rules that Karpenter does not have.
A mutation is found if a world differs that did not differ before. Prints a table. The exit code is
1 if a mutation was not found, except those in `NOT_JUDGED`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.parity import mutate
from bench.parity.mutate import EngineMutation
from tests.mutations import MutationFailedError, broken, try_each

SCHEDULING = "controller/scheduling"

MUTATIONS: tuple[EngineMutation, ...] = (
    EngineMutation(
        "an empty selector of a spread counts all pods",
        f"{SCHEDULING}/topology/groups.py",
        "if selectors.is_empty(selector):",
        "if False:",
        "spread,spread_over_some_nodes",
    ),
    EngineMutation(
        "a node over its capacity takes no pods",
        f"{SCHEDULING}/nodes/existing.py",
        "needed = requests > 0",
        "needed = requests >= 0",
        "best_effort,tight",
    ),
    EngineMutation(
        "pods that share a node ignore rules about zones",
        f"{SCHEDULING}/topology/spread.py",
        "while counted < most and admits(pins, rules):",
        "while counted < most:",
        "spread,pod_affinity,zone_spread",
    ),
    EngineMutation(
        "ended pods use capacity",
        f"{SCHEDULING}/nodes/existing.py",
        "if index is None or is_terminal(pod):",
        "if index is None:",
        "ended_pods",
    ),
    EngineMutation(
        "cordoned nodes take pods",
        f"{SCHEDULING}/nodes/existing.py",
        "if not node.spec.unschedulable and not lifecycle_event(node):",
        "if True:",
        "unready_nodes",
    ),
    EngineMutation(
        "an expression on the name of a node is not read",
        f"{SCHEDULING}/pods/nodeaffinity.py",
        "return [*term.match_expressions, *names]",
        "return [*term.match_expressions]",
        "node_affinity",
    ),
    EngineMutation(
        "a new node has no hostname",
        f"{SCHEDULING}/catalog/offerings.py",
        "{**labels.LIFECYCLE, labels.HOSTNAME: NEW_NAME}",
        "{**labels.LIFECYCLE}",
        "companions",
    ),
    EngineMutation(
        "one pod need not match all affinity terms",
        f"{SCHEDULING}/topology/groups.py",
        "selector=selectors.conjunction([_selector_of(term, own_labels) for term in terms]),",
        "selector=_selector_of(terms[0], own_labels),",
        "affinity,both_affinities",
    ),
    EngineMutation(
        "every node meets the taints policy of a spread",
        f"{SCHEDULING}/topology/groups.py",
        'honors_taints = constraint.node_taints_policy == "Honor"',
        "honors_taints = False",
        "spread_of_replicas,spread_over_some_nodes",
    ),
    EngineMutation(
        "spreads count pods on nodes that the pod cannot use",
        f"{SCHEDULING}/topology/groups.py",
        'honors_affinity = constraint.node_affinity_policy != "Ignore"',
        "honors_affinity = False",
        "spread_of_replicas,spread_over_some_nodes",
    ),
)

NOT_JUDGED = frozenset(
    {
        "pools have no limits",
        "preferences are given up at once",
        "pods join cheaper nodes whatever the weight of their pool",
        "daemons cost nothing",
        "a NodePool may contradict itself",
    }
)
"""Mutations of rules that are not kube-scheduler's."""

ABOUT, ALL = 1200, (("existing", 3000), ("launched", 400))
"""Number of seeds of each family whose worlds about the mutation are judged, and families and
numbers of seeds of which all worlds are judged, one after the other until a world differs."""

DIFFERING = re.compile(r"^\w+ (\d+) \(", re.M)


def differing_seeds(checkout: Path, family: str, *options: str) -> set[str]:
    """Return the seeds whose worlds differ.

    Raises:
        MutationFailedError: the campaign ended before it had run all worlds.

    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.kubescheduler", "--family", family, *options],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or " worlds differ" not in done.stdout:
        raise MutationFailedError(done.stderr[-2000:])
    return set(DIFFERING.findall(done.stdout))


def find_evidence(checkout: Path, mutation: EngineMutation) -> str:
    """Return what reveals a mutation, or an empty string; the files are restored afterwards."""
    # The even seeds of `launched` are those of the parity campaign, doubled.
    first = 2 * mutate.FIRST_SEED.get(mutation.about, 0)
    about = ("--seeds", str(ABOUT), "--about", mutation.about)
    runs = [
        ("existing", about),
        ("launched", (*about, "--first", str(first))),
        *((family, ("--seeds", str(seeds))) for family, seeds in ALL),
    ]
    with broken(checkout, mutation):
        for family, options in runs:
            if found := differing_seeds(checkout, family, *options):
                return f"{len(found)} {family}: {' '.join(options)}"
    return ""


def main(argv: Sequence[str]) -> int:
    """Try every mutation, print the table and return the exit code."""
    mutations = (
        mutation for mutation in (*MUTATIONS, *mutate.MUTATIONS) if mutation.name not in NOT_JUDGED
    )
    return try_each("bench.kubescheduler.mutate", __doc__, mutations, find_evidence, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
