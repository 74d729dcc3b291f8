"""A solver process receives each node and running pod once, and has exactly the existing ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.apis.kubernetes.pods import Pod
from controller.manager.solver import transfer
from controller.manager.solver.transfer import ClusterReceiver, ClusterSender
from controller.state.nodes import StateNode
from tests.builders import make_node, make_pod


class Process:
    """A solver process, and what was sent to it."""

    def __init__(self) -> None:
        self.sender, self.receiver = ClusterSender(), ClusterReceiver()

    def send(self, pods: Sequence[Pod], nodes: Sequence[StateNode] = ()) -> int:
        """Send a cluster as a solve does; return the number of batches."""
        batches = list(self.sender.batches(nodes, pods))
        for batch in batches:
            self.receiver.receive(batch)
        assert self.receiver.contents(self.sender.sent) == (tuple(nodes), tuple(pods))
        return len(batches)


@pytest.fixture
def process() -> Process:
    """Return a process that has received an empty cluster."""
    process = Process()
    process.send([])
    return process


A, B, C = (make_pod(f"web-{name}", node="node") for name in "abc")
ONE, TWO = (StateNode(node=make_node(f"node-{name}")) for name in ("one", "two"))


def test_what_is_unchanged_is_not_sent_again(process: Process) -> None:
    assert process.send([A, B], [ONE, TWO]) == 2
    assert process.send([A, B], [ONE, TWO]) == 0


def test_only_new_and_changed_pods_are_sent(process: Process) -> None:
    process.send([A, B])
    changed = make_pod("web-a", node="node", cpu="7")

    (batch,) = process.sender.batches([], [B, changed, C])
    process.receiver.receive(batch)

    assert process.receiver.contents(process.sender.sent) == ((), (B, changed, C))
    assert b"web-a" in batch
    assert b"web-b" not in batch


def test_a_pod_that_moves_is_on_one_node(process: Process) -> None:
    process.send([A, B])
    process.send([make_pod("web-a", node="another"), B])
    process.send([B])


def test_pods_are_removed_and_return(process: Process) -> None:
    process.send([A, B])
    process.send([B])
    process.send([A, B, C])
    process.send([])


def test_only_changed_nodes_are_sent(process: Process) -> None:
    process.send([A], [ONE, TWO])
    deleting = StateNode(node=TWO.node, deleting=True)

    (batch,) = process.sender.batches([ONE, deleting], [A])
    process.receiver.receive(batch)

    assert process.receiver.contents(process.sender.sent) == ((ONE, deleting), (A,))
    assert b"node-two" in batch
    assert b"node-one" not in batch


def test_nodes_are_removed_and_return(process: Process) -> None:
    process.send([], [ONE, TWO])
    process.send([], [TWO])
    process.send([], [ONE, TWO])


def test_many_pods_are_sent_in_portions(process: Process) -> None:
    names = sorted(f"node-{number}" for number in range(transfer.AT_ONCE + 1))
    assert process.send([make_pod("p", node=name) for name in names]) == 2


def test_a_new_process_has_nothing() -> None:
    sender = ClusterSender()
    list(sender.batches([], [A]))
    (second,) = sender.batches([], [A, B])
    restarted = ClusterReceiver()
    restarted.receive(second)
    assert restarted.contents(sender.sent) is None


def test_a_new_sender_replaces_what_the_process_has(process: Process) -> None:
    process.send([A, B], [ONE, TWO])
    process.sender = ClusterSender()
    process.send([B, C], [TWO])
