"""The command `explain pod`: the node of a pending pod, or why the pod is unschedulable."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.offline import reporter
from controller.offline.commandline import (
    CommandError,
    cluster_parser,
    run_on_cluster,
    write_data,
    write_tables,
)
from controller.offline.record.command import access_of, world_of
from controller.offline.solve import solve_world
from controller.offline.world import World
from controller.state.snapshot import with_promised_capacity


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `explain pod`; return the exit code."""
    return run_on_cluster(parser(), _print, argv, environ)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = cluster_parser(
        "explain pod",
        "Print where a pending pod is scheduled, or why it is unschedulable. Reads the "
        "cluster with the settings of its controller, or a recorded world.",
        subject="POD",
        subject_help="a name, or namespace/name",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        help="the pod's namespace (default: that of the context, or `default`)",
    )
    return parser


def _print(chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]) -> int:
    name = _key(chosen, environ)
    result = solve_world(
        lambda: _with_promised_capacity(world_of(chosen, settings, environ)),
        seconds=chosen.time_limit,
    )
    pod = next((each for each in result.world.pods if each.key == name), None)
    gates = [
        gate.name
        for each in result.world.gated_pods
        if each.key == name
        for gate in each.spec.scheduling_gates
    ]
    if gates:
        outcome = f"waits until its scheduling gates are removed: {', '.join(gates)}"
        if not write_data(chosen.output, {"pod": name, "answer": outcome, "reasons": []}):
            print(f"{name} {outcome}")
        return 0
    nominated = next((each for each in result.world.nominated_pods if each.key == name), None)
    if nominated is not None:
        outcome = result.pending.nomination(nominated, result.world.snapshot.pods)
        if not write_data(chosen.output, {"pod": name, "answer": outcome, "reasons": []}):
            print(f"{name} {outcome}")
        return 0
    if pod is None:
        running = {each.key: each.spec.node_name for each in result.world.snapshot.pods}
        if name not in running:
            raise CommandError(f'pod "{name}" not found; --namespace selects another namespace')
        if not write_data(chosen.output, {"pod": name, "node": running[name]}):
            print(f"{name} already runs on {running[name]}.")
        return 0
    explanation = reporter.explain(result.results, pod, result.catalog, result.pending)
    reasons = list(explanation.causes or explanation.pools)
    content = {"pod": explanation.pod, "answer": explanation.outcome, "reasons": reasons}
    if not write_data(chosen.output, content):
        first = f"{explanation.pod} {explanation.outcome}"
        write_tables((), before="\n".join((first, *(f"  {reason}" for reason in reasons))))
    return 0


def _with_promised_capacity(world: World) -> World:
    """Return the world as the controller sees it: unlaunched NodeClaims hold their pods."""
    return replace(world, snapshot=with_promised_capacity(world.snapshot))


def _key(chosen: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the pod's key; `pod/NAME` is a name, as in the output of `kubectl get -o name`."""
    prefix, slash, name = chosen.pod.partition("/")
    if slash and prefix not in {"pod", "pods", "po"}:
        return str(chosen.pod)
    namespace = chosen.namespace
    if not namespace and chosen.world is None:
        namespace = access_of(environ).namespace
    return f"{namespace or 'default'}/{name if slash else chosen.pod}"
