"""Break the engine deliberately, one rule at a time, and check that a test fails.

    python -m bench.parity.mutate [--only NAME]

The checkout is copied to a temporary directory and modified there. The check is that of
`tests/parity/test_parity.py`: the generated worlds about the rule, compared with Karpenter's
answers. A mutation is found if a world fails that did not fail before, or fails differently, or if
one of the engine's own tests fails. Prints a table. The exit code is 1 if a mutation was not found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.parity.generated import SEPARATE
from tests.mutations import Mutation, MutationFailedError, broken, red_test, try_each

WORLDS = (64, 256)
"""Number of seeds per attempt: a few reveal most mutations, and only the others need them all.

Of their worlds, only those about the mutation's features are solved.
"""

FIRST_SEED = {feature.__name__: seed for seed, own in SEPARATE.items() for feature in own}
"""The first seed of the worlds about a feature that has worlds of its own."""

ENGINE_TESTS = ("tests/scheduling", "tests/constraints")
FAILED = re.compile(r"^seed (\d+)|^  FAILED ([a-z ]+):", re.M)


@dataclass(frozen=True, slots=True)
class EngineMutation(Mutation):
    """A mutation, and the features whose worlds must reveal it."""

    about: str


CONSTRAINTS, SCHEDULING = "controller/constraints", "controller/scheduling"
MUTATIONS = (
    EngineMutation(
        "NotIn reads as In",
        f"{CONSTRAINTS}/requirements.py",
        "ValueSet(frozenset(named), complement=True)",
        "ValueSet(frozenset(named))",
        "node_affinity,pool_requirements",
    ),
    EngineMutation(
        "Gt includes the bound",
        f"{CONSTRAINTS}/requirements.py",
        "at_least=_bound(operator, named) + 1)",
        "at_least=_bound(operator, named) - 1)",
        "node_affinity,pool_requirements,weights",
    ),
    EngineMutation(
        "bounds are not looked at",
        f"{CONSTRAINTS}/requirements.py",
        "if self.at_least is None and self.at_most is None:\n            return True",
        "if True:\n            return True",
        "node_affinity,custom_labels",
    ),
    EngineMutation(
        "absence meets Exists",
        f"{CONSTRAINTS}/requirements.py",
        "return bool(self.values) and not is_bounded",
        "return not is_bounded",
        "custom_labels",
    ),
    EngineMutation(
        "a toleration's value does not matter",
        f"{CONSTRAINTS}/taints.py",
        "return bool(toleration.key) and toleration.value == taint.value",
        "return bool(toleration.key)",
        "taints",
    ),
    EngineMutation(
        "a toleration's effect does not matter",
        f"{CONSTRAINTS}/taints.py",
        "if toleration.effect and toleration.effect != taint.effect:",
        "if False:",
        "taints",
    ),
    EngineMutation(
        "host ports of different protocols clash",
        f"{CONSTRAINTS}/hostports.py",
        "and mine.protocol == theirs.protocol",
        "and True",
        "host_ports",
    ),
    EngineMutation(
        "0.0.0.0 is an address like others",
        f"{CONSTRAINTS}/hostports.py",
        "(mine.ip == theirs.ip or EVERY_ADDRESS in {mine.ip, theirs.ip})",
        "mine.ip == theirs.ip",
        "host_ports",
    ),
    EngineMutation(
        "sidecars cost nothing",
        f"{CONSTRAINTS}/resources.py",
        "largest((total((running, started)), *peaks))",
        "largest((running, *peaks))",
        "containers",
    ),
    EngineMutation(
        "init containers cost nothing",
        f"{CONSTRAINTS}/resources.py",
        "largest((total((running, started)), *peaks))",
        "total((running, started))",
        "containers",
    ),
    EngineMutation(
        "overhead costs nothing",
        f"{CONSTRAINTS}/resources.py",
        "needed = total((needed, parsed_requests(spec.overhead)))",
        "pass",
        "containers",
    ),
    EngineMutation(
        "requests of the whole pod are not read",
        f"{CONSTRAINTS}/resources.py",
        "if spec.resources is not None:",
        "if False:",
        "containers",
    ),
    EngineMutation(
        "NotIn in label selectors picks nothing",
        f"{CONSTRAINTS}/selectors.py",
        "return value is not None and value in expression.values",
        "return True",
        "match_label_keys",
    ),
    EngineMutation(
        "one more than maxSkew is even",
        f"{SCHEDULING}/topology/rules.py",
        "return group.max_skew + least",
        "return group.max_skew + least + 1",
        "zone_spread,spread_of_others,hostname_spread,other_spread",
    ),
    EngineMutation(
        "anti-affinity tolerates company",
        f"{SCHEDULING}/topology/rules.py",
        "return int(own)",
        "return ENDLESS",
        "anti_affinity,running_neighbours",
    ),
    EngineMutation(
        "anti-affinity of running pods does not apply",
        f"{SCHEDULING}/nodes/occupancy.py",
        "fitting = np.where(self._owners[group.index] > 0, 0, fitting)",
        "pass",
        "running_neighbours,anti_affinity",
    ),
    EngineMutation(
        "minDomains is not read",
        f"{SCHEDULING}/topology/rules.py",
        "len(counts) < max(group.min_domains, 1)",
        "not counts",
        "zone_spread",
    ),
    EngineMutation(
        "pods with affinity ignore the constraints among themselves",
        f"{SCHEDULING}/placement/colocation.py",
        "_fitting_count(pending, host, capacity, mask, variants), on_one_node(pending, beside)",
        "_fitting_count(pending, host, capacity, mask, variants), pending.number",
        "pod_affinity,companions",
    ),
    EngineMutation(
        "terms reach only their own namespace",
        f"{SCHEDULING}/topology/groups.py",
        "return namespace in self.namespaces and",
        'return namespace == "default" and',
        "namespaces",
    ),
    EngineMutation(
        "pools have no limits",
        f"{SCHEDULING}/catalog/limits.py",
        "left[index] = limit - used",
        "left[index] = 1e18 + limit - used",
        "limits",
    ),
    EngineMutation(
        "daemons cost nothing",
        f"{SCHEDULING}/catalog/daemons.py",
        "requests=requests,",
        "requests={},",
        "daemons",
    ),
    EngineMutation(
        "nodes lack the labels of their start",
        f"{SCHEDULING}/catalog/offerings.py",
        "{**labels.LIFECYCLE, labels.HOSTNAME: NEW_NAME}",
        "{labels.HOSTNAME: NEW_NAME}",
        "daemons",
    ),
    EngineMutation(
        "a NodePool may contradict itself",
        f"{SCHEDULING}/catalog/offerings.py",
        "contradiction=contradiction(pool),",
        'contradiction="",',
        "pool_requirements",
    ),
    EngineMutation(
        "running pods use no capacity",
        f"{SCHEDULING}/nodes/existing.py",
        "            used[index].append(requests)\n            self.ports",
        "            self.ports",
        "existing_nodes,running_neighbours,containers",
    ),
    EngineMutation(
        "preferences are given up at once",
        f"{SCHEDULING}/pods/preferences.py",
        "return requirements.read(self.preferred_nodes[0].preference.match_expressions)",
        "return {}",
        "preferred_node_affinity",
    ),
    EngineMutation(
        "a node attaches any number of volumes",
        f"{SCHEDULING}/nodes/attachments.py",
        "spare = limit - self._used_count(node, driver)",
        "spare = 99 + limit - self._used_count(node, driver)",
        "volume_limits",
    ),
    EngineMutation(
        "bound volumes are reached from anywhere",
        f"{SCHEDULING}/pods/volumes.py",
        "if affinity is None or affinity.required is None:",
        "if True:",
        "volumes,volumes_and_spread",
    ),
    EngineMutation(
        "absence meets a contradiction",
        f"{CONSTRAINTS}/requirements.py",
        "return not self.values and not self.exists",
        "return not self.values",
        "volumes,custom_labels",
    ),
    EngineMutation(
        "zone labels of volumes are not read",
        f"{SCHEDULING}/pods/volumes.py",
        "if key in _ZONE_LABELS and all(names):",
        "if False:",
        "volumes",
    ),
    EngineMutation(
        "a volume is created without a provisioner",
        f"{SCHEDULING}/pods/volumes.py",
        'return storage_class.provisioner not in ("", NO_PROVISIONER)',
        "return True",
        "volumes",
    ),
    EngineMutation(
        "a claim is bound to a volume of others",
        f"{SCHEDULING}/pods/staticvolumes.py",
        'and volume.status.phase == "Available"',
        "and True",
        "volumes",
    ),
    EngineMutation(
        "every node has storage for a new volume",
        f"{SCHEDULING}/pods/storagecapacity.py",
        "if not size:",
        "if True:",
        "volumes",
    ),
    EngineMutation(
        "two claims are bound to one volume",
        f"{SCHEDULING}/pods/volumes.py",
        "if len(claims) == 1 and not contested:",
        "if True:",
        "volumes",
    ),
    EngineMutation(
        "a volume on the disk of a node is reached from others",
        f"{SCHEDULING}/pods/volumes.py",
        "and self._leaving.intersection(expression.values)",
        "and True",
        "volumes",
    ),
    EngineMutation(
        "a selected node is not read",
        f"{SCHEDULING}/pods/volumes.py",
        "if selected in self._nodes:",
        "if False:",
        "volumes",
    ),
    EngineMutation(
        "several pods use a ReadWriteOncePod claim",
        f"{SCHEDULING}/pods/volumes.py",
        "exclusive.append(claim.metadata.key)",
        "pass",
        "volumes",
    ),
    EngineMutation(
        "an unbound claim gets a volume per zone",
        f"{SCHEDULING}/pods/groups.py",
        "for claim, key in pod_class.volumes.shared:",
        "for claim, key in ():",
        "volumes",
    ),
    EngineMutation(
        "a new node attaches any number of volumes",
        f"{SCHEDULING}/problem.py",
        "if total * MILLI > limits.min(initial=np.inf):",
        "if False:",
        "volume_limits",
    ),
    EngineMutation(
        "volumes that are still attached do not count",
        f"{SCHEDULING}/nodes/attachments.py",
        "return len(self._attached[(node, driver)] | self._lingering[(node, driver)])",
        "return len(self._attached[(node, driver)])",
        "volume_limits",
    ),
    EngineMutation(
        "each affinity term is met by another pod",
        f"{SCHEDULING}/pods/groups.py",
        "yield TopologyType.AFFINITY, required, key, True",
        "yield TopologyType.AFFINITY, required[:1], key, True",
        "several_affinity_terms",
    ),
    EngineMutation(
        "terminating pods repel no pods",
        f"{SCHEDULING}/topology/groups.py",
        "if is_terminating and self.all[index].type is TopologyType.SPREAD:",
        "if is_terminating:",
        "terminating_neighbours",
    ),
    EngineMutation(
        "terminating pods count in a spread",
        f"{SCHEDULING}/topology/groups.py",
        "if is_terminating and self.all[index].type is TopologyType.SPREAD:",
        "if False:",
        "terminating_neighbours",
    ),
    EngineMutation(
        "a spread counts domains that its pods cannot reach",
        f"{SCHEDULING}/placement/domains.py",
        "            mask = self.reach(pending)\n",
        "            mask = np.ones_like(self.reach(pending))\n",
        "narrow_zones",
    ),
    EngineMutation(
        "a spread does not count domains of new nodes for other pods",
        f"{SCHEDULING}/placement/domains.py",
        "if new and is_broken(tally, own, (*universe, *new)):",
        "if False:",
        "narrow_zones",
    ),
    EngineMutation(
        "a spread counts nodes without the keys of other spreads",
        f"{SCHEDULING}/topology/groups.py",
        "if any(domain_of(node, key) is None for key in self.keys):",
        "if False:",
        "hosts_with_pods",
    ),
    EngineMutation(
        "a spread over nodes always compares with an empty node",
        f"{SCHEDULING}/nodes/occupancy.py",
        "if not group.is_host_spread or group.index in self._cautious:",
        "if True:",
        "hosts_with_pods",
    ),
    EngineMutation(
        "a spread over nodes does not count new nodes",
        f"{SCHEDULING}/nodes/occupancy.py",
        "if skew > 0 and skew > self._least(",
        "if False and skew > self._least(",
        "hosts_with_pods",
    ),
    EngineMutation(
        "minValues counts zones that the claim excludes",
        f"{SCHEDULING}/nodeclaims.py",
        "needed, columns = 0, terms.launchable.columns",
        "needed, columns = 0, self.supply.variants.catalog.available",
        "minimums_of_offerings",
    ),
    EngineMutation(
        "pods use a pool whose minValues they cannot meet",
        f"{SCHEDULING}/catalog/minvalues.py",
        "met &= ~inside\n",
        "pass\n",
        "minimums_of_offerings",
    ),
    EngineMutation(
        "targets of pods on existing nodes move to other domains",
        f"{SCHEDULING}/rearrangement.py",
        "(*rules, *self.domains.stated_rules())",
        "rules",
        "running_neighbours",
    ),
    EngineMutation(
        "pods join cheaper nodes whatever the weight of their pool",
        f"{SCHEDULING}/packing/localsearch.py",
        "if weight == self._heaviest:",
        "if True:",
        "weights,limits",
    ),
)


def failures(checkout: Path, about: str, seeds: int) -> set[tuple[str, str]]:
    """Return the seed and the kind of every failure in the worlds of the first `seeds` seeds.

    `about` names features, separated by commas; worlds about none of them are left out.

    Raises:
        MutationFailedError: the campaign ended before it had run all worlds.

    """
    span = ["--first", str(FIRST_SEED.get(about, 0)), "--seeds", str(seeds)]
    command = [sys.executable, "-m", "bench.parity.campaign", *span]
    done = subprocess.run(
        [*command, "--about", about],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or " worlds in " not in done.stdout:
        raise MutationFailedError(done.stderr[-2000:])
    failed, seed = set(), ""
    for match in FAILED.finditer(done.stdout):
        seed = match[1] or seed
        if match[2]:
            failed.add((seed, match[2]))
    return failed


def find_evidence(checkout: Path, mutation: EngineMutation) -> str:
    """Return what reveals a mutation, or an empty string; the files are restored afterwards."""
    for seeds in WORLDS:
        before = _known_failures(checkout, mutation.about, seeds)
        with broken(checkout, mutation):
            fresh = failures(checkout, mutation.about, seeds) - before
        if fresh:
            kinds = ", ".join(sorted({kind for _, kind in fresh}))
            return f"{len(fresh)} of {seeds} worlds: {kinds}"
    with broken(checkout, mutation):
        return red_test(checkout, *ENGINE_TESTS)


@cache
def _known_failures(checkout: Path, about: str, seeds: int) -> set[tuple[str, str]]:
    """Return the failures without any mutation."""
    return failures(checkout, about, seeds)


def main(argv: Sequence[str]) -> int:
    """Try every mutation, print the table and return the exit code."""
    return try_each("bench.parity.mutate", __doc__, MUTATIONS, find_evidence, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
