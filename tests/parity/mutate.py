"""Break the engine on purpose, one rule at a time, and see whether a test turns red.

    python -m tests.parity.mutate [--only NAME]

The checkout is copied to a temporary directory and broken there. What is asked is what
`test_parity.py` asks: the generated worlds about the rule, judged beside Karpenter's answers.
A mutation is found when a world fails that did not fail before, or in another way, or when a
test of the engine's own turns red. Prints a table, and ends with 1 when one was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SEEDS = 256
ENGINE_TESTS = ("tests/scheduling", "tests/constraints")
RED = re.compile(r"^FAILED (\S+)", re.M)
FAILED = re.compile(r"^seed (\d+)|^  FAILED ([a-z ]+):", re.M)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A line of the engine, what it becomes, and the features whose worlds must notice."""

    name: str
    file: str
    old: str
    new: str
    about: str


CONSTRAINTS, SCHEDULING = "controller/constraints", "controller/scheduling"
MUTATIONS = (
    Mutation(
        "NotIn reads as In",
        f"{CONSTRAINTS}/requirements.py",
        "ValueSet(frozenset(named), complement=True)",
        "ValueSet(frozenset(named))",
        "node_affinity,pool_requirements",
    ),
    Mutation(
        "Gt includes the bound",
        f"{CONSTRAINTS}/requirements.py",
        "at_least=_bound(operator, named) + 1)",
        "at_least=_bound(operator, named) - 1)",
        "node_affinity,pool_requirements,weights",
    ),
    Mutation(
        "bounds are not looked at",
        f"{CONSTRAINTS}/requirements.py",
        "if self.at_least is None and self.at_most is None:\n            return True",
        "if True:\n            return True",
        "node_affinity,custom_labels",
    ),
    Mutation(
        "absence meets Exists",
        f"{CONSTRAINTS}/requirements.py",
        "return bool(self.values) and self.at_least is None",
        "return self.at_least is None",
        "custom_labels",
    ),
    Mutation(
        "a toleration's value does not matter",
        f"{CONSTRAINTS}/taints.py",
        "return bool(toleration.key) and toleration.value == taint.value",
        "return bool(toleration.key)",
        "taints",
    ),
    Mutation(
        "a toleration's effect does not matter",
        f"{CONSTRAINTS}/taints.py",
        "if toleration.effect and toleration.effect != taint.effect:",
        "if False:",
        "taints",
    ),
    Mutation(
        "host ports of different protocols clash",
        f"{CONSTRAINTS}/hostports.py",
        "and mine.protocol == theirs.protocol",
        "and True",
        "host_ports",
    ),
    Mutation(
        "0.0.0.0 is an address like others",
        f"{CONSTRAINTS}/hostports.py",
        "(mine.ip == theirs.ip or EVERY_ADDRESS in {mine.ip, theirs.ip})",
        "mine.ip == theirs.ip",
        "host_ports",
    ),
    Mutation(
        "sidecars cost nothing",
        f"{CONSTRAINTS}/resources.py",
        "largest((total((running, started)), *peaks))",
        "largest((running, *peaks))",
        "containers",
    ),
    Mutation(
        "init containers cost nothing",
        f"{CONSTRAINTS}/resources.py",
        "largest((total((running, started)), *peaks))",
        "total((running, started))",
        "containers",
    ),
    Mutation(
        "overhead costs nothing",
        f"{CONSTRAINTS}/resources.py",
        "needed = total((needed, asked(spec.overhead)))",
        "pass",
        "containers",
    ),
    Mutation(
        "requests of the whole pod are not read",
        f"{CONSTRAINTS}/resources.py",
        "if spec.resources is not None:",
        "if False:",
        "containers",
    ),
    Mutation(
        "NotIn in label selectors picks nothing",
        f"{CONSTRAINTS}/selectors.py",
        "return value is not None and value in expression.values",
        "return True",
        "match_label_keys",
    ),
    Mutation(
        "one more than maxSkew is even",
        f"{SCHEDULING}/topology/groups.py",
        "return count + own - least <= self.max_skew",
        "return count + own - least <= self.max_skew + 1",
        "zone_spread,spread_of_others,hostname_spread,other_spread",
    ),
    Mutation(
        "anti-affinity by zone tolerates company",
        f"{SCHEDULING}/topology/groups.py",
        "return count == 0",
        "return count >= 0",
        "anti_affinity,running_neighbours",
    ),
    Mutation(
        "pods that run repel nobody",
        f"{SCHEDULING}/nodes/occupancy.py",
        "room = np.where(self._owners[group.index] > 0, 0, room)",
        "pass",
        "running_neighbours,anti_affinity",
    ),
    Mutation(
        "minDomains is not read",
        f"{SCHEDULING}/topology/spread.py",
        "len(universe) < max(group.min_domains, 1)",
        "not universe",
        "zone_spread",
    ),
    Mutation(
        "terms reach only their own namespace",
        f"{SCHEDULING}/topology/groups.py",
        "return namespace in self.namespaces and",
        'return namespace == "default" and',
        "namespaces",
    ),
    Mutation(
        "pools have no limits",
        f"{SCHEDULING}/catalog/limits.py",
        "left[place] = limit - used",
        "left[place] = 1e18 + limit - used",
        "limits",
    ),
    Mutation(
        "daemons cost nothing",
        f"{SCHEDULING}/catalog/daemons.py",
        "requests=resources.pod_requests(pod),",
        "requests={},",
        "daemons",
    ),
    Mutation(
        "pods that run take no room",
        f"{SCHEDULING}/nodes/existing.py",
        "            used[index].append(requests)\n            self.ports",
        "            self.ports",
        "existing_nodes,running_neighbours,containers",
    ),
    Mutation(
        "preferences are given up at once",
        f"{SCHEDULING}/pods/preferences.py",
        "return requirements.read(self.preferred_nodes[0].preference.match_expressions)",
        "return {}",
        "preferred_node_affinity",
    ),
    Mutation(
        "a node attaches any number of volumes",
        f"{SCHEDULING}/nodes/attachments.py",
        "spare = limit - len(attached)",
        "spare = 99 + limit - len(attached)",
        "volume_limits",
    ),
    Mutation(
        "bound volumes are reached from anywhere",
        f"{SCHEDULING}/pods/volumes.py",
        "if affinity is None or affinity.required is None:",
        "if True:",
        "volumes,volumes_and_spread",
    ),
    Mutation(
        "pods join cheaper nodes whatever the weight of their pool",
        f"{SCHEDULING}/packing/localsearch.py",
        "if weight == self._heaviest:",
        "if True:",
        "weights,limits",
    ),
)


class MutationFailedError(RuntimeError):
    """The line to break is not there, or not only there."""


def failures(checkout: Path, about: str) -> set[tuple[str, str]]:
    """Return seed and kind of every failure in worlds about the features."""
    command = [sys.executable, "-m", "tests.parity.campaign", "--seeds", str(SEEDS)]
    done = subprocess.run(
        [*command, "--about", about],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or " worlds in " not in done.stdout:
        raise MutationFailedError(done.stderr[-2000:])
    found, seed = set(), ""
    for match in FAILED.finditer(done.stdout):
        seed = match[1] or seed
        if match[2]:
            found.add((seed, match[2]))
    return found


def red_test(checkout: Path) -> str:
    """Return the first test of the engine that fails, empty when none does."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-m", "not cluster", *ENGINE_TESTS],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    found = RED.search(done.stdout)
    return found[1] if found else ""


def noticed(checkout: Path, mutation: Mutation, known: set[tuple[str, str]]) -> str:
    """Return who notices a mutation, empty when nobody does; the file is as before afterwards."""
    file = checkout / mutation.file
    source = file.read_text()
    if source.count(mutation.old) != 1:
        times = source.count(mutation.old)
        raise MutationFailedError(f"{mutation.file} has {times} of: {mutation.old}")
    file.write_text(source.replace(mutation.old, mutation.new))
    try:
        fresh = sorted(failures(checkout, mutation.about) - known)
        if fresh:
            return f"{len(fresh)} worlds: {', '.join(sorted({kind for _, kind in fresh}))}"
        return red_test(checkout)
    finally:
        file.write_text(source)


def main(argv: Sequence[str]) -> int:
    """Try every mutation and print the table."""
    parser = argparse.ArgumentParser(prog="tests.parity.mutate", description=__doc__)
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    options = parser.parse_args(argv)
    missed = 0
    known: dict[str, set[tuple[str, str]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "checkout"
        copy.mkdir()
        shutil.copy(CHECKOUT / "pyproject.toml", copy)
        for part in ("controller", "testbed", "tests"):
            shutil.copytree(
                CHECKOUT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for mutation in (one for one in MUTATIONS if options.only in one.name):
            if mutation.about not in known:
                known[mutation.about] = failures(copy, mutation.about)
            who = noticed(copy, mutation, known[mutation.about])
            missed += not who
            seen = who or "NOT FOUND"
            print(f"| {mutation.name} | `{mutation.file}` | {seen} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
