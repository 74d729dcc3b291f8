"""The part of the test cloud that kubelets use, in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NODE_ROLE = "arn:aws:iam::123456789012:role/KarpenterNodeRole-joiner"


@dataclass
class FakeCloud:
    """Instances and access entries that a test sets, served as the test cloud serves them."""

    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: list[dict[str, Any]] = field(default_factory=list)
    associations: list[tuple[str, str]] = field(default_factory=list)  # namespace, account
    url: str = ""
    _revision: int = 1
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def launch(self, instance_id: str, **row: Any) -> None:
        """Add an instance, or change one."""
        with self._changed:
            self.instances[instance_id] = {
                "instanceId": instance_id,
                "state": "running",
                "instanceType": "m5.large",
                "zone": "us-west-2a",
                "zoneId": "usw2-az2",
                "privateIp": "10.0.1.7",
                "architecture": "x86_64",
                "roleArn": NODE_ROLE,
                "cpu": 2,
                "memoryMiB": 8192,
                "maxPods": 29,
                **self.instances.get(instance_id, {}),
                **row,
            }
            self._revision += 1
            self._changed.notify_all()

    def set_state(self, instance_id: str, state: str) -> None:
        """Set an instance's state."""
        self.launch(instance_id, state=state)

    def allow(self, role_arn: str = NODE_ROLE, *, kind: str = "EC2_LINUX") -> None:
        """Create an access entry."""
        self.access_entries.append(
            {"clusterName": "joiner", "principalArn": role_arn, "type": kind}
        )

    def changes_since(self, since: int, timeout_seconds: float) -> dict[str, Any]:
        """Return the answer of the long poll."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision > since, timeout_seconds)
            return {"revision": self._revision, "instances": list(self.instances.values())}


@contextmanager
def fake_cloud() -> Iterator[FakeCloud]:
    """Serve a fake cloud on a free port."""
    cloud = FakeCloud()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if url.path == "/testbed/instances":
                since, timeout = int(query.get("since", -1)), float(query.get("timeout", 0))
                self._answer(cloud.changes_since(since, min(timeout, 1.0)))
            elif url.path.endswith("/pod-identity-associations"):
                known = [
                    {
                        "clusterName": "joiner",
                        "namespace": namespace,
                        "serviceAccount": account,
                        "isSeen": True,
                    }
                    for namespace, account in cloud.associations
                ]
                self._answer(known)
            else:
                self._answer(cloud.access_entries)

        def _answer(self, body: Any) -> None:
            written = json.dumps(body).encode()
            with suppress(ConnectionError):  # the client may have stopped
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(written)))
                self.end_headers()
                self.wfile.write(written)

        def log_message(self, *_: object) -> None:
            """Log nothing, to keep the test's output readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
