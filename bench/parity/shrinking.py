"""Reduce a world to a smaller one that still shows a failure of Joiner or a fault of Karpenter.

    python -m bench.parity.shrinking SEED|WORLD.json [--failure dearer|"left over"|…] > SMALL.json
    python -m bench.parity.shrinking SEED|WORLD.json --karpenter RULE > SMALL.json

Removes pods, instance types, NodePools, nodes, volumes and offerings, in ever smaller portions.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.arguments import make_parser
from bench.parity import comparison, engines, generated
from tests.oracle.replay import findings

World = dict[str, Any]
Shows = Callable[[World], bool]


def shrink(world: World, shows: Shows) -> World:
    """Return a part of the world that shows the failure.

    No single item can be removed from it.
    """
    while True:
        before = json.dumps(world)
        for key in [key for key in world if isinstance(world[key], list)]:
            world = _fewer(world, key, shows)
        for kind in world["instanceTypes"]:
            _fewer_offerings(world, kind, shows)
        if json.dumps(world) == before:
            return world


def _fewer(world: World, key: str, shows: Shows) -> World:
    portion = max(1, len(world[key]) // 2)
    while portion:
        begin = 0
        while begin < len(world[key]):
            rest = world[key][:begin] + world[key][begin + portion :]
            attempt = {**world, key: rest}
            if shows(attempt):
                world = attempt
            else:
                begin += portion
        portion //= 2
    return world


def _fewer_offerings(world: World, kind: dict[str, Any], shows: Shows) -> None:
    for offering in list(kind["offerings"]):
        kept = kind["offerings"]
        kind["offerings"] = [other for other in kept if other is not offering]
        if not kind["offerings"] or not shows(world):
            kind["offerings"] = kept


def failure_test(beginning: str, features: Sequence[str] = ()) -> Shows:
    """Return a test for a failure of Joiner's answer that starts with this text."""

    def shows(world: World) -> bool:
        (their,) = engines.karpenter_batch([world])
        if "error" in their:
            return False
        verdict = comparison.solve_and_compare(world, their, features=features)
        return any(failure.startswith(beginning) for failure in verdict.failures)

    return shows


def fault_test(rule: str) -> Shows:
    """Return a test for whether Karpenter's answer breaks a rule."""

    def shows(world: World) -> bool:
        (their,) = engines.karpenter_batch([world])
        if "error" in their:
            return False
        broken = findings(world, their, world["instanceTypes"])
        return any(finding.rule == rule for finding in broken)

    return shows


def main(argv: Sequence[str]) -> int:
    """Shrink a world and print it."""
    parser = make_parser("bench.parity.shrinking", __doc__)
    parser.add_argument("world", help="a seed, or the path of a world")
    parser.add_argument(
        "--failure", default="", help="beginning of the failure's text, such as dearer"
    )
    parser.add_argument("--karpenter", help="a rule that Karpenter's answer breaks, instead")
    options = parser.parse_args(argv)
    features: tuple[str, ...] = ()
    if options.world.isdigit():
        world = generated.world(int(options.world))
        features = generated.features(int(options.world))
    else:
        world = json.loads(Path(options.world).read_text())
    shows = (
        fault_test(options.karpenter)
        if options.karpenter
        else failure_test(options.failure, features)
    )
    if not shows(world):
        print("the world does not show it", file=sys.stderr)
        return 1
    json.dump(shrink(copy.deepcopy(world), shows), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
