"""What the engine shows of a destroy that is refused, in the preview and in the destroy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from testbed.environment import CHECKOUT
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.plugins.home import Plugins
from tests.infra.kubeconfigs import kubeconfig_in

PROGRAM = """
import pulumi
from infra.cluster.ekscluster import EksCluster
from infra.lifecycle.teardown import Drain, DrainArgs

config = pulumi.Config()
cluster = EksCluster(
    name="joiner",
    region="us-west-2",
    account="123456789012",
    endpoint="https://127.0.0.1:1",
    certificate_authority="",
    security_group_id="sg-1",
    kubeconfig=config.require("kubeconfig"),
)
Drain(
    "drain",
    DrainArgs(
        cluster=cluster,
        installation="organization/joiner/dev",
        namespace="kube-system",
        deployment="karpenter",
        timeout_seconds=1,
        delete_foreign_node_pools=False,
        stack="organization/joiner/dev",
        delete_other_node_pools=config.get_bool("confirmed") or False,
        deletes=True,
    ),
)
"""
REFERENCE = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
OF_ANOTHER_STACK = {
    "metadata": {"name": "web", "annotations": {"joiner.dev/stack": "organization/joiner/team"}},
    "spec": {"template": {"spec": {"nodeClassRef": REFERENCE}}},
}
REFUSAL = "other stacks own these NodePools: web (organization/joiner/team)"


class Pools(BaseHTTPRequestHandler):
    """EKS with one cluster, and the cluster's API server with one NodePool; both are only read."""

    def do_GET(self) -> None:
        pools = {"metadata": {}, "items": [OF_ANOTHER_STACK]}
        is_eks = self.path.startswith("/clusters/")
        body = json.dumps({"cluster": {"name": "joiner"}} if is_eks else pools).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@pytest.fixture
def server() -> Iterator[str]:
    """URL of a cluster with a NodePool of another stack."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pools)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refused(operation: Any) -> str:
    """Return what the engine shows of an operation that is refused."""
    with pytest.raises(EngineError) as error:
        operation("dev")
    said = error.value.output
    assert "Exception calling application" not in said
    assert "Traceback" not in said
    return said


@pytest.mark.needs("pulumi")
def test_a_destroy_is_refused_during_its_preview_from_the_recorded_state(
    server: str, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text(json.dumps({"name": "joiner", "runtime": "python"}))
    (project / "__main__.py").write_text(PROGRAM)
    engine = PulumiEngine(
        directory=tmp_path / "engine",
        project=project,
        environment={
            "PYTHONPATH": str(CHECKOUT),
            "AWS_ENDPOINT_URL": server,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
        plugins=Plugins.STAND_IN,
    )
    settings = {"kubeconfig": str(kubeconfig_in(tmp_path, server=server))}
    engine.up("dev", settings)

    assert not engine.preview("dev", settings).any
    assert f"error: pulumi destroy would be refused:\n    {REFUSAL}" in refused(
        engine.preview_destroy
    )
    assert f"error: {REFUSAL}" in refused(engine.destroy)
    # A setting counts once an up has put it into the state.
    engine.preview("dev", settings | {"confirmed": "true"})
    assert REFUSAL in refused(engine.preview_destroy)
    engine.up("dev", settings | {"confirmed": "true"})
    assert engine.preview_destroy("dev").delete == 2
