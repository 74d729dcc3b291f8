"""The test cloud as a process: it prints its address, and ends on request or when unused."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.state.tokens import ClusterReviewer, TokenRefusedError
from testbed.kube.kubeconfig import make_kubeconfig
from tests.testbed.cloud.builders import token
from tests.testbed.cloud.conftest import Aws, eventually

COMMAND = [
    sys.executable,
    "-m",
    "testbed.cloud",
    "--cluster-name=other",
    "--cluster-endpoint=https://127.0.0.1:7443",
    "--cluster-ca=QUJD",
    "--kubernetes-version=1.35",
    "--oidc-issuer=https://oidc.example/id/1",
]


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_cloud_prints_its_url_serves_and_stops_on_request(number: signal.Signals) -> None:
    with running() as (process, url):
        cluster = Aws(url).client("eks").describe_cluster(name="other")["cluster"]
        waiting = threading.Thread(target=poll_until_cut_off, args=(url,))
        waiting.start()

        process.send_signal(number)

        assert process.wait(timeout=60) == 0
        waiting.join(timeout=60)
    assert cluster["endpoint"] == "https://127.0.0.1:7443"
    assert cluster["version"] == "1.35"


def poll_until_cut_off(url: str) -> None:
    with suppress(OSError):
        CloudControl(url).instances(since=9, timeout=50)


@pytest.mark.process
def test_the_cloud_stops_with_its_parent_process() -> None:
    parent = (
        "import json, subprocess, sys\n"
        f"child = subprocess.Popen({COMMAND!r}, stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
    )

    finished = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )

    child = int(finished.stdout)
    eventually(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_has_one_cloud_at_a_time() -> None:
    first = Cloud()
    first.start()
    try:
        with pytest.raises(RuntimeError, match="already a cloud"):
            Cloud().start()
        Aws(first.url).client("sqs").create_queue(QueueName="gone-with-the-first")
    finally:
        first.stop()

    with Cloud() as second:
        assert CloudControl(second.url).leftovers() == {}


# ---------------------------------------------------------------- token review


@contextmanager
def api_server(status: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answers every TokenReview with one status."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            asked[-1]["path"] = self.path
            asked[-1]["authorization"] = self.headers.get("Authorization")
            body = json.dumps({"status": status}).encode()
            self.send_response(201)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, to keep the test's output readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kubeconfig(directory: Path, server: str) -> Path:
    path = directory / f"kubeconfig-{os.getpid()}"
    path.write_text(make_kubeconfig("testbed", server, b"", {"token": "of-the-admin"}))
    return path


SUBJECT = "system:serviceaccount:kube-system:karpenter"
AUDIENCE = "pods.eks.amazonaws.com"


def test_a_token_is_reviewed_by_the_cluster(tmp_path: Path) -> None:
    status = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": SUBJECT}}
    with api_server(status) as (server, asked):
        reviewer = ClusterReviewer(kubeconfig(tmp_path, server))

        account = reviewer.review(token("anyone", audience=AUDIENCE), audience=AUDIENCE)

    assert (account.namespace, account.name) == ("kube-system", "karpenter")
    assert asked[0]["path"] == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert asked[0]["authorization"] == "Bearer of-the-admin"
    assert asked[0]["spec"]["audiences"] == [AUDIENCE]


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({"authenticated": False, "error": "token is old"}, "token is old"),
        (
            {"authenticated": True, "audiences": ["other"], "user": {"username": SUBJECT}},
            "not meant for",
        ),
        (
            {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": "ann"}},
            "not a service account",
        ),
    ],
)
def test_a_token_that_the_cluster_refuses_is_refused(
    tmp_path: Path, status: dict[str, Any], complaint: str
) -> None:
    with api_server(status) as (server, _):
        reviewer = ClusterReviewer(kubeconfig(tmp_path, server))

        with pytest.raises(TokenRefusedError, match=complaint):
            reviewer.review(token(SUBJECT, audience=AUDIENCE), audience=AUDIENCE)


@pytest.mark.parametrize("text", ["", "a.b", base64.b64encode(b"x.y.z").decode()])
def test_an_invalid_token_is_refused(tmp_path: Path, text: str) -> None:
    reviewer = ClusterReviewer(kubeconfig(tmp_path, "http://127.0.0.1:1"))

    with pytest.raises(TokenRefusedError):
        reviewer.review(text, audience=AUDIENCE)
