"""A solver process receives each running pod once, and has exactly the existing pods."""

from __future__ import annotations

from controller.apis.kubernetes.pods import Pod
from controller.manager.solver import transfer
from controller.manager.solver.transfer import PodReceiver, PodSender
from tests.builders import make_pod


def sent(sender: PodSender, receiver: PodReceiver, *pods: Pod) -> int:
    """Send pods as a solve does; return the number of batches."""
    batches = list(sender.batches(pods))
    for batch in batches:
        receiver.receive(batch)
    assert receiver.pods(sender.numbers(pods)) == pods
    return len(batches)


A, B, C = (make_pod(name, node="node") for name in "abc")


def test_an_unchanged_pod_is_not_sent_again() -> None:
    sender, receiver = PodSender(), PodReceiver()
    assert sent(sender, receiver, A, B) == 1
    assert sent(sender, receiver, B, A) == 0
    assert sent(sender, receiver, A) == 0


def test_only_new_and_changed_pods_are_sent() -> None:
    sender, receiver = PodSender(), PodReceiver()
    sent(sender, receiver, A)
    assert sent(sender, receiver, A, B) == 1
    moved = make_pod("a", node="another")
    assert sent(sender, receiver, moved, B) == 1


def test_a_removed_pod_is_sent_again_when_it_returns() -> None:
    sender, receiver = PodSender(), PodReceiver()
    sent(sender, receiver, A, B)
    sent(sender, receiver, B)
    assert sent(sender, receiver, A, B, C) == 1


def test_many_pods_are_sent_in_portions() -> None:
    pods = [make_pod(f"p-{n}", node=f"node-{n}") for n in range(transfer.AT_ONCE + 1)]
    assert sent(PodSender(), PodReceiver(), *pods) == 2


def test_a_new_process_has_no_pods() -> None:
    sender = PodSender()
    list(sender.batches([A]))
    assert PodReceiver().pods(sender.numbers([A])) is None
