"""A real API server with Joiner's CustomResourceDefinitions, for the tests of this folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from controller.apis import crds
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster

ESTABLISHED_SECONDS = 120


@dataclass(frozen=True)
class Answer:
    """The API server's response to an object."""

    accepted: bool
    body: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class ApiServer:
    """Creates and changes objects, as a dry run unless requested otherwise."""

    url: str
    session: requests.Session

    def create(self, wire: dict[str, Any], *, dry_run: bool = True) -> Answer:
        return self._answer("POST", _collection(wire), wire, dry_run=dry_run)

    def replace(self, wire: dict[str, Any], *, subresource: str = "") -> Answer:
        path = f"{_collection(wire)}/{wire['metadata']['name']}{subresource}"
        return self._answer("PUT", path, wire, dry_run=True)

    def get(self, path: str) -> dict[str, Any]:
        """Return the object at the path; empty if there is none."""
        response = self.session.get(self.url + path, timeout=30)
        return dict(response.json()) if response.ok else {}

    def delete(self, wire: dict[str, Any]) -> None:
        path = f"{_collection(wire)}/{wire['metadata']['name']}"
        self.session.delete(self.url + path, timeout=30).raise_for_status()

    def _answer(self, method: str, path: str, wire: dict[str, Any], *, dry_run: bool) -> Answer:
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        response = self.session.request(
            method, self.url + path, params=query, json=wire, timeout=30
        )
        return Answer(response.ok, response.json())


def _collection(wire: dict[str, Any]) -> str:
    group_version, kind = wire["apiVersion"], wire["kind"]
    prefix = "/apis" if "/" in group_version else "/api"
    namespace = wire["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    return f"{prefix}/{group_version}{scope}/{plural}"


@pytest.fixture(scope="package")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Yield the API server of a dedicated cluster, with all of Joiner's kinds established."""
    folder = tmp_path_factory.mktemp("apis")
    with Cluster(directory=folder / "cluster") as cluster:
        server = ApiServer(cluster.server, _session(cluster.kubeconfig, folder))
        for text in crds.render().values():
            answer = server.create(yaml.safe_load(text), dry_run=False)
            assert answer.accepted, answer.message
        _wait_until_established(server)
        yield server
        server.session.close()


def _session(kubeconfig: Path, folder: Path) -> requests.Session:
    credentials = Kubeconfig.read(kubeconfig)
    files = {
        "ca": credentials.certificate_authority,
        "crt": credentials.client_certificate or b"",
        "key": credentials.client_key or b"",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    session = requests.Session()
    session.trust_env = False
    session.verify = str(folder / "ca")
    session.cert = (str(folder / "crt"), str(folder / "key"))
    return session


def _wait_until_established(server: ApiServer) -> None:
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    while True:
        definitions = server.get(path)["items"]
        waiting = [crd["metadata"]["name"] for crd in definitions if not _is_served(server, crd)]
        if not waiting:
            return
        assert time.monotonic() < deadline, f"never established: {waiting}"
        time.sleep(0.1)


def _is_served(server: ApiServer, crd: dict[str, Any]) -> bool:
    spec = crd["spec"]
    root = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
    resources = server.get(root).get("resources", [])
    return any(resource["name"] == spec["names"]["plural"] for resource in resources)
