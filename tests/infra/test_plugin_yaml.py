"""Pulumi's own language host of YAML programs, with the package and without an engine."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import (
    engine_pb2_grpc,
    language_pb2,
    language_pb2_grpc,
    resource_pb2,
    resource_pb2_grpc,
)

from infra.plugin.arguments import ArgumentError, joiner_args
from infra.plugin.schema import COMPONENT
from infra.plugin.server import PackageServicer
from testbed.plugins.home import Plugins, prepare
from testbed.processes import binaries, owned
from tests.infra.stage import CHECKOUT
from tests.infra.test_readme import blocks_of

pytestmark = pytest.mark.needs("pulumi-yaml")

PAGE = (CHECKOUT / "docs" / "how-to" / "package.md").read_text()
(PROGRAM,) = blocks_of(PAGE, "yaml")
PACKAGES = {"packages": {"joiner": "../joiner/plugin"}}
"""What `pulumi package add ../joiner/plugin` adds to a program."""


class Monitor(resource_pb2_grpc.ResourceMonitorServicer):
    """The part of an engine that programs register resources with."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.outputs: set[str] = set()

    def SupportsFeature(self, request: Any, context: Any) -> Any:
        return resource_pb2.SupportsFeatureResponse(hasSupport=True)

    def RegisterResource(self, request: Any, context: Any) -> Any:
        self.registered.append(request)
        urn = f"urn:pulumi:dev::package::{request.type}::{request.name}"
        return resource_pb2.RegisterResourceResponse(urn=urn, object=request.object)

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:
        self.outputs = set(request.outputs)
        return empty_pb2.Empty()

    def SignalAndWaitForShutdown(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()


class Log(engine_pb2_grpc.EngineServicer):
    """The part of an engine that hosts write their messages to."""

    def Log(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()


@dataclass
class Host:
    """Pulumi's host in a home of its own, beside a checkout as `../joiner`."""

    folder: Path
    said: str = ""
    outputs: set[str] = field(default_factory=set)
    """The outputs of the last program."""

    def run(self, program: str | Mapping[str, Any]) -> Sequence[Any]:
        """Run a program as in a preview; return what it registers, without the stack."""
        text = program if isinstance(program, str) else yaml.safe_dump(program)
        (self.folder / "Pulumi.yaml").write_text(text)
        monitor = Monitor()
        server = grpc.server(ThreadPoolExecutor(8))
        resource_pb2_grpc.add_ResourceMonitorServicer_to_server(monitor, server)
        engine_pb2_grpc.add_EngineServicer_to_server(Log(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            self.said = self._run(address)
        finally:
            server.stop(grace=None).wait()
        self.outputs = monitor.outputs
        return [one for one in monitor.registered if one.type != "pulumi:pulumi:Stack"]

    def _run(self, engine: str) -> str:
        home = prepare(
            self.folder / "home",
            engine=binaries.ensure("pulumi"),
            plugins=Plugins.STAND_IN,
            hosts=[binaries.ensure("pulumi-language-yaml")],
        )
        own = {
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_HOME": str(home.directory),
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        }
        info = language_pb2.ProgramInfo(
            root_directory=str(self.folder), program_directory=str(self.folder), entry_point="."
        )
        request = language_pb2.RunRequest(
            project="package", stack="dev", organization="organization", dryRun=True, parallel=4,
            pwd=str(self.folder), program=".", monitor_address=engine, info=info,
        )  # fmt: skip
        with subprocess.Popen(
            [home.engine.with_name("pulumi-language-yaml"), engine],
            cwd=self.folder,
            env=owned.marked_environment(self.folder, {**os.environ, **own}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as way:
                    language_pb2_grpc.LanguageRuntimeStub(way).Run(request)
            finally:
                process.terminate()
            return process.communicate()[1]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Provide the host; at the end, neither it nor the package runs."""
    folder = tmp_path / "package"
    folder.mkdir()
    (tmp_path / "joiner").symlink_to(CHECKOUT)
    yield Host(folder)
    assert owned.belonging_to(folder) == []


def program_with(**properties: Any) -> Mapping[str, Any]:
    """Return the program of the page with the package and other properties."""
    program = copy.deepcopy(yaml.safe_load(PROGRAM)) | PACKAGES
    program["resources"]["joiner"]["properties"] |= properties
    return dict(program)


async def arguments_of(registered: Any) -> dict[str, Any]:
    """Return the inputs as the SDK gives them to the package."""
    return await PackageServicer._construct_inputs(registered.object, {})


async def test_the_yaml_program_of_the_page_creates_joiner_as_written(host: Host) -> None:
    (registered,) = host.run(PROGRAM + yaml.safe_dump(PACKAGES))

    assert (registered.type, registered.remote) == (COMPONENT, True)
    given = await arguments_of(registered)
    assert given == yaml.safe_load(PROGRAM)["resources"]["joiner"]["properties"]
    assert host.outputs == {"nodeRole", "interruptionQueue"}
    assert (CHECKOUT / "examples/package/Pulumi.yaml").read_text() == PROGRAM
    assert "\npulumi package add ../joiner/plugin\n" in PAGE


async def test_typed_inputs_secrets_and_placeholders_arrive_as_meant(host: Host) -> None:
    facts = {"account": "123456789012", "endpoint": "https://shop.example"}
    facts |= {"certificateAuthority": "Y2E=", "securityGroupId": "sg-1"}
    pool = {"kind": "NodePool", "spec": {"weight": 10, "role": "$${NODE_ROLE}"}}

    (registered,) = host.run(
        program_with(
            cluster={"name": "shop", "region": "us-west-2", **facts},
            replicas=3,
            drainTimeout="5m",
            windowsNodes=True,
            nodePools=[pool],
            secretEnv={"TOKEN": {"fn::secret": "hush"}},
        )
    )

    made = joiner_args(await arguments_of(registered))
    assert (made.replicas, made.drain_timeout.total_seconds(), made.windows_nodes) == (3, 300, True)
    assert made.node_pools == [{"kind": "NodePool", "spec": {"weight": 10, "role": "${NODE_ROLE}"}}]
    token: Any = made.secret_env["TOKEN"]
    assert await token.is_secret()
    assert await token.future() == "hush"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"imgae": "joiner:1"}, "Property imgae does not exist on 'joiner:infra:Joiner'"),
        ({"replicas": "three"}, "replicas: Cannot assign type 'string' to type 'integer'"),
        ({"windowsNodes": "yes"}, "windowsNodes: Cannot assign type 'string' to type 'boolean'"),
        ({"cluster": {"name": "shop"}}, "region: Missing required property 'region'"),
        ({"nodePools": {}}, "nodePools: Cannot assign '{}' to 'List<Map<any>>'"),
    ],
)
def test_the_host_names_what_the_schema_forbids(
    host: Host, wrong: Mapping[str, Any], words: str
) -> None:
    assert host.run(program_with(**wrong)) == []
    assert words in host.said


async def test_joiner_names_what_the_host_lets_pass(host: Host) -> None:
    (registered,) = host.run(program_with(settings={"KUBE_CLIENT_QPS": 200}))

    with pytest.raises(ArgumentError, match=r"KUBE_CLIENT_QPS=200 .* put a number, .* in quotes"):
        joiner_args(await arguments_of(registered))
