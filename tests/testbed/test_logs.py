"""`make logs` prints what the controller's replicas logged."""

from __future__ import annotations

from pathlib import Path

from testbed.commandline import controller_lines


def test_the_lines_of_all_replicas_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    first = '{"level":"INFO","time":"2026-11-29T01:00:00.000Z","message":"one"}'
    second = '{"level":"INFO","time":"2026-11-29T01:00:01.000Z","message":"two"}'
    third = '{"level":"INFO","time":"2026-11-29T01:00:02.000Z","message":"three"}'
    files = {
        "kube-system_karpenter-a_controller.log": [first, "a traceback", third],
        "kube-system_karpenter-b_controller.log": [second],
        "default_web-1_nginx.log": ["hello"],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines))

    assert controller_lines(tmp_path) == [first, "a traceback", second, third]
