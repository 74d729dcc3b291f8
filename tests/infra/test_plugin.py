"""The component as a Pulumi package: its schema, its arguments, and the providers it runs."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pulumi
import pytest
from pulumi.runtime import proto, rpc

from infra.joiner import JoinerArgs
from infra.plugin.arguments import ArgumentError, joiner_args
from infra.plugin.schema import COMPONENT, schema
from infra.plugin.server import Package, PackageServicer
from infra.release import version
from testbed.environment import CHECKOUT

CLUSTER = {
    "name": "shop",
    "region": "us-west-2",
    "account": "123456789012",
    "endpoint": "https://shop.example",
    "certificateAuthority": "Y2E=",
    "securityGroupId": "sg-1",
}
PLACE = {"cluster_name": "shop", "region": "us-west-2", "installation": "o/p/s"}


def test_the_package_offers_every_argument_of_the_component_with_its_meaning() -> None:
    offered = schema(version())["resources"][COMPONENT]["inputProperties"]

    assert len(offered) == len(dataclasses.fields(JoinerArgs))
    assert all(one["description"] for one in offered.values())
    assert offered["nodeRoleName"]["type"] == "string"
    assert "plain" not in offered["nodeRoleName"], "it may be an output of another resource"
    assert offered["nodeRole"]["plain"]


def test_values_of_another_language_become_arguments() -> None:
    made = joiner_args(
        {
            "cluster": CLUSTER,
            "replicas": 3.0,
            "drainTimeout": "5m",
            "identity": "irsa",
            "windowsNodes": True,
            "tags": {"team": "shop"},
            "nodePools": [{"kind": "NodePool", "spec": {"weight": 10.0, "share": 0.5}}],
        }
    )

    assert made.cluster.certificate_authority == "Y2E="
    assert made.replicas == 3
    assert made.drain_timeout == timedelta(minutes=5)
    assert made.identity == "irsa"
    assert made.windows_nodes
    assert made.tags == {"team": "shop"}
    assert made.node_pools == [{"kind": "NodePool", "spec": {"weight": 10, "share": 0.5}}]
    assert type(made.node_pools[0]["spec"]["weight"]) is int


async def test_an_output_may_be_what_the_component_needs_only_later() -> None:
    later = pulumi.Output.from_input("registry.example.com/joiner:1")

    assert joiner_args({"cluster": CLUSTER, "image": later}).image is not None
    with pytest.raises(ArgumentError, match="identity is a secret, or an output of another"):
        joiner_args({"cluster": CLUSTER, "identity": later})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "cluster is missing"),
        ({"cluster": {"name": "shop"}}, "cluster.region is missing"),
        ({"cluster": {"name": "shop", "region": "r", "account": "1"}}, "cluster: .*'endpoint'"),
        ({"cluster": {**CLUSTER, "zone": "a"}}, "cluster.zone is unknown: allowed are name, "),
        ({"cluster": CLUSTER, "imgae": "x"}, "imgae is unknown"),
        ({"cluster": CLUSTER, "identity": "iam"}, "identity='iam' .* pod-identity or irsa"),
        ({"cluster": CLUSTER, "drainTimeout": "soon"}, "drainTimeout='soon'"),
        ({"cluster": CLUSTER, "replicas": 1.5}, "replicas='1.5'"),
        ({"cluster": CLUSTER, "windowsNodes": "yes"}, "windowsNodes='yes' .* true or false"),
        ({"cluster": CLUSTER, "nodePools": {}}, "nodePools={} .* a list"),
        ({"cluster": CLUSTER, "tags": {"a": 1.0}}, "tags.a=1 .* text; put a number, .* in quotes"),
        ({"cluster": CLUSTER, "settings": {"DISABLE_LEADER_ELECTION": True}}, "=true .* text"),
        ({"cluster": {**CLUSTER, "account": 123456789012.0}}, "cluster.account=123456789012 "),
    ],
)
def test_a_value_that_is_not_allowed_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        joiner_args(values)


class RefusedError(Exception):
    """The engine received an error."""


class Call:
    """A call of the engine."""

    async def abort(self, _code: Any, message: str) -> None:
        raise RefusedError(message)


async def struct(values: dict[str, Any]) -> Any:
    return await rpc.serialize_properties(values, {})


@pytest.fixture
def servicer() -> PackageServicer:
    return PackageServicer(Package(), [], "")


async def test_the_package_runs_the_provider_that_a_resource_names(
    servicer: PackageServicer,
) -> None:
    props = await struct({**PLACE, "__provider": "installation"})

    checked = await servicer.Check(proto.CheckRequest(news=props), Call())
    made = await servicer.Create(proto.CreateRequest(properties=checked.inputs), Call())
    same = await servicer.Diff(proto.DiffRequest(id=made.id, olds=props, news=props), Call())
    elsewhere = await struct({**PLACE, "region": "eu-west-1", "__provider": "installation"})

    assert dict(made.properties) == dict(props)
    assert same.changes == proto.DiffResponse.DIFF_NONE
    with pytest.raises(RefusedError, match=r"^this stack cannot be moved: joiner:region changes"):
        await servicer.Diff(proto.DiffRequest(id=made.id, olds=props, news=elsewhere), Call())


async def test_what_is_secret_stays_secret_in_the_state(servicer: PackageServicer) -> None:
    given = {**PLACE, "made": rpc.wrap_rpc_secret("queue"), "__provider": "installation"}

    made = await servicer.Create(proto.CreateRequest(properties=await struct(given)), Call())

    assert rpc.is_rpc_secret(rpc.deserialize_properties(made.properties)["made"])
    assert made.properties["region"] == "us-west-2"


def test_the_package_is_not_beside_the_project() -> None:
    # Pulumi rejects a folder with both files, or mistakes one for the other.
    assert (CHECKOUT / "Pulumi.yaml").exists()
    assert not (CHECKOUT / "PulumiPlugin.yaml").exists()
    assert (CHECKOUT / "plugin" / "PulumiPlugin.yaml").exists()
