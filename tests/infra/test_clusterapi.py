"""The client of the cluster's API that the teardown uses."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import boto3
import pytest
from kubernetes.client import Configuration

from infra import clusterapi
from infra.cluster.ekscluster import _for_plugin
from infra.clusterapi import (
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterNotAbandonedError,
    ClusterUnreachableError,
    require_abandoned,
)
from infra.config.forms import ConfigError
from tests.infra.kubeconfigs import kubeconfig_in

REGION = "us-west-2"


@dataclass
class Site:
    """A server that records its requests."""

    url: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    plain: str = ""
    """The error that replaces every answer."""

    def api(self, **more: Any) -> ClusterApi:
        return ClusterApi(
            Configuration(host=self.url, api_key={"BearerToken": "Bearer secret"}), **more
        )


@pytest.fixture
def site() -> Iterator[Site]:
    """An API server of few answers, on loopback."""
    here = Site()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode()
            authorization = self.headers.get("Authorization") or ""
            here.asked.append((self.command, f"{self.path} {body}".strip(), authorization))
            query = parse_qs(urlparse(self.path).query)
            path = urlparse(self.path).path + "".join(query.get("continue", []))
            status, answer = here.answers.get(path, (404, {"message": "no such thing"}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write((here.plain or json.dumps(answer)).encode())

        do_GET = do_DELETE = do_PATCH = do_POST = respond  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collection_is_read_page_by_page(site: Site) -> None:
    site.answers = {
        "/nodes": (200, {"metadata": {"continue": "/2"}, "items": [{"n": 1}]}),
        "/nodes/2": (200, {"metadata": {}, "items": [{"n": 2}]}),
    }

    assert site.api().list("/nodes", labelSelector="a") == [{"n": 1}, {"n": 2}]
    assert all("labelSelector=a" in path for _, path, _ in site.asked)
    assert site.asked[0][2] == "Bearer secret"


def test_a_missing_object_is_not_an_error(site: Site) -> None:
    api = site.api()

    assert api.list("/nodepools") == []
    assert api.get("/nodepools/a") is None
    api.delete("/nodepools/a")
    api.merge("/nodepools/a", {"metadata": {}})


def test_a_refusal_has_the_servers_message(site: Site) -> None:
    site.answers = {"/nodes": (403, {"message": "you may not"})}

    with pytest.raises(ApiError, match="403: you may not"):
        site.api().list("/nodes")


def test_refused_credentials_make_the_cluster_unreachable(site: Site) -> None:
    site.answers = {"/nodes": (401, {"message": "Unauthorized"})}

    with pytest.raises(
        ClusterUnreachableError, match=r"does not accept the current credentials .*renew"
    ):
        site.api().list("/nodes")


@pytest.mark.usefixtures("cluster")
def test_requests_use_the_proxy_of_the_kubeconfig(site: Site, tmp_path: Path) -> None:
    path = kubeconfig_in(tmp_path, server="http://cluster.internal", proxy_url=site.url)
    site.answers = {"/version": (200, {"minor": "33"})}
    location = ClusterLocation("joiner", REGION, kubeconfig=str(path))

    assert ClusterApi.find(location).get("/version") == {"minor": "33"}
    kubeconfig_in(tmp_path, proxy_url="socks5://127.0.0.1:1080")
    with pytest.raises(ClusterUnreachableError, match=r"proxy-url is socks5://.* allowed is"):
        ClusterApi.find(location)


def test_a_silent_server_is_retried_until_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusterapi, "RETRY_SECONDS", 0.5)
    said: list[str] = []
    nowhere = ClusterApi(
        Configuration(host="http://127.0.0.1:1"),
        patience_seconds=0.5,
        say=said.append,
    )

    with pytest.raises(ClusterUnreachableError, match="does not answer"):
        nowhere.get("/version")

    assert len(said) == 1
    assert "waiting up to" in said[0]


@pytest.fixture
def cluster(account: None) -> str:
    """An EKS cluster by name; its API server is elsewhere."""
    boto3.client("eks", REGION).create_cluster(
        name="joiner",
        roleArn="arn:aws:iam::123456789012:role/cluster",
        resourcesVpcConfig={"subnetIds": ["subnet-1"]},
    )
    return "joiner"


@pytest.mark.usefixtures("cluster")
def test_a_deleted_cluster_is_distinguished_from_a_silent_one(tmp_path: Path) -> None:
    with pytest.raises(ClusterGoneError, match='EKS cluster "other" not found in us-west-2'):
        ClusterApi.find(ClusterLocation("other", REGION))
    with pytest.raises(ClusterUnreachableError, match="none cannot be used"):
        ClusterApi.find(ClusterLocation("joiner", REGION, kubeconfig=str(tmp_path / "none")))
    (tmp_path / "none").write_text("contexts: [")
    with pytest.raises(ClusterUnreachableError, match="none cannot be used"):
        ClusterApi.find(ClusterLocation("joiner", REGION, kubeconfig=str(tmp_path / "none")))


GONE, SILENT = ClusterGoneError("no such cluster"), ClusterUnreachableError("it does not answer")
FORGETS = {"PULUMI_K8S_DELETE_UNREACHABLE": "true"}


@pytest.mark.parametrize(
    ("problem", "environment"),
    [
        (GONE, FORGETS),
        (SILENT, FORGETS | {"JOINER_ABANDON_CLUSTER": "joiner"}),
    ],
)
def test_an_abandoned_cluster_is_not_needed(
    problem: ClusterGoneError | ClusterUnreachableError, environment: dict[str, str]
) -> None:
    require_abandoned(ClusterLocation("joiner", REGION), problem, environment)


@pytest.mark.parametrize(
    ("problem", "environment", "next_step"),
    [
        (GONE, {}, "without it: PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy"),
        (SILENT, {}, "JOINER_ABANDON_CLUSTER=joiner PULUMI_K8S_DELETE_UNREACHABLE=true pulumi"),
        (SILENT, FORGETS, "EKS has the cluster joiner, but it does not answer"),
        (SILENT, {"JOINER_ABANDON_CLUSTER": "joiner"}, "Nothing has been removed"),
        (SILENT, FORGETS | {"JOINER_ABANDON_CLUSTER": "other"}, "Nothing has been removed"),
    ],
)
def test_nothing_is_destroyed_without_a_cluster_that_was_not_abandoned(
    problem: ClusterGoneError | ClusterUnreachableError,
    environment: dict[str, str],
    next_step: str,
) -> None:
    with pytest.raises(ClusterNotAbandonedError, match=next_step):
        require_abandoned(ClusterLocation("joiner", REGION), problem, environment)


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "user",
    [
        {"exec": {"command": "a-plugin-that-nobody-has-installed"}},
        {"exec": {"command": "false"}},
        {"exec": {"command": "echo", "args": ["not a credential"]}},
        {"tokenFile": "a-file-that-is-not-there"},
    ],
    ids=lambda user: "-".join(map(str, user.get("exec", user).values())),
)
def test_without_credentials_a_cluster_is_unreachable_but_not_gone(
    site: Site, tmp_path: Path, user: dict[str, Any]
) -> None:
    path = kubeconfig_in(tmp_path, server=site.url, user=user)

    with pytest.raises(ClusterUnreachableError):
        ClusterApi.find(ClusterLocation("joiner", REGION, kubeconfig=str(path))).get("/version")

    assert site.asked == []


def test_a_response_from_another_server_is_not_accepted(site: Site) -> None:
    site.answers = {"/nodes": (200, "")}
    site.plain = "<html>please log in</html>"

    with pytest.raises(ClusterUnreachableError):
        site.api().list("/nodes")


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_a_kubeconfigs_credential_plugin_is_asked_for_the_token(site: Site, tmp_path: Path) -> None:
    program = "import json, os; print(json.dumps({'status': {'token': os.environ['WHO']}}))"
    user = {
        "exec": {
            "command": sys.executable,
            "args": ["-c", program],
            "env": [{"name": "WHO", "value": "plugin"}],
        }
    }
    path = kubeconfig_in(tmp_path, server=site.url, user=user)

    ClusterApi.find(ClusterLocation("joiner", REGION, kubeconfig=str(path))).get("/version")

    assert site.asked[0][2] == "Bearer plugin"


@pytest.mark.usefixtures("cluster")
def test_a_token_file_is_read_for_each_request(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    path = kubeconfig_in(tmp_path, server=site.url, user={"tokenFile": "token"})
    api = ClusterApi.find(ClusterLocation("joiner", REGION, kubeconfig=str(path)))

    api.get("/version")
    (tmp_path / "token").write_text("second\n")
    api.get("/version")

    assert [authorization for _, _, authorization in site.asked] == [
        "Bearer first",
        "Bearer second",
    ]


@pytest.mark.usefixtures("cluster")
def test_without_a_kubeconfig_a_token_is_signed_as_the_aws_cli_does() -> None:
    from infra.clusterapi import _eks_token

    token = _eks_token(ClusterLocation("joiner", REGION))

    prefix, _, encoded = token.partition(".")
    url = urlparse(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    query = parse_qs(url.query)
    assert prefix == "k8s-aws-v1"
    assert url.netloc == "sts.us-west-2.amazonaws.com"
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]


def test_a_kubeconfig_with_relative_paths_is_refused_because_the_plugin_does_not_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig_in(tmp_path, user={"tokenFile": "token"}, certificate_authority="ca.crt")

    with pytest.raises(ConfigError, match=r"certificate-authority: ca\.crt, tokenFile: token"):
        _for_plugin(str(path))

    monkeypatch.chdir(tmp_path)
    assert _for_plugin(str(path)) == str(path), "the plugin's folder is the kubeconfig's"
    kubeconfig_in(tmp_path, user={"tokenFile": "/run/token"})
    assert _for_plugin(str(path)) == str(path)
    assert _for_plugin("/no/such/file") == "/no/such/file"
