"""The endpoint of a new cluster, whose name does not resolve at once."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable

import pytest

from infra.cluster.answering import _does_answer, endpoint_that_answers, wait_until_answering
from testbed.processes.ports import free_ports

URL = "https://ABC.gr7.us-west-2.eks.amazonaws.com"


def after(failures: int) -> Callable[[str, str], bool]:
    """Return an API server that answers after some requests without an answer."""
    answers = iter([False] * failures)
    return lambda endpoint, authority: next(answers, True)


async def test_the_endpoint_of_a_new_cluster_is_used_once_it_answers() -> None:
    ask = after(3)

    assert await wait_until_answering(URL, "", does_answer=ask, poll_seconds=0.0001) == URL
    assert ask(URL, ""), "it was asked until it answered"


async def test_an_endpoint_that_never_answers_is_left_to_the_provider() -> None:
    silent = after(10**6)

    found = await wait_until_answering(
        URL, "", does_answer=silent, patience_seconds=0.003, poll_seconds=0.001
    )

    assert found == URL


def test_a_known_endpoint_is_used_at_once() -> None:
    assert endpoint_that_answers(URL, "") == URL


class Refusing(http.server.BaseHTTPRequestHandler):
    """An API server that does not know the caller."""

    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_any_status_is_an_answer_and_a_refused_connection_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert _does_answer(f"http://127.0.0.1:{server.server_port}", "")

    assert not _does_answer(f"http://127.0.0.1:{free_ports(1)[0]}", "")
