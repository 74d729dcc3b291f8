"""The engine adds the package to a program, and previews the component."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.cloud import Cloud
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.plugins.home import Plugins
from testbed.processes import owned
from tests.infra.stage import CHECKOUT

pytestmark = pytest.mark.needs("pulumi")

REGION = {"aws:region": "us-west-2"}
PROGRAM = """
import pulumi
import pulumi_aws as aws

network = {"subnet_ids": ["subnet-1"]}
cluster = aws.eks.Cluster("shop", role_arn="arn:aws:iam::1:role/eks", vpc_config=network)
arn = cluster.arn.apply(lambda arn: arn.split(":"))
facts = {
    "name": cluster.name,
    "region": arn[3],
    "account": arn[4],
    "endpoint": cluster.endpoint,
    "certificateAuthority": cluster.certificate_authority.data,
    "securityGroupId": cluster.vpc_config.cluster_security_group_id,
    "subnetIds": ["subnet-1"],
}
properties = {"cluster": facts, "image": "joiner:test", "nodeRoleName": None}
joiner = pulumi.ComponentResource("joiner:infra:Joiner", "joiner", properties, remote=True)
pulumi.export("nodeRole", joiner.nodeRoleName)
"""
"""What the SDK of any language does: it passes a type and properties to the engine."""


def engine_on(folder: Path, cloud: Cloud) -> PulumiEngine:
    """Return an engine on the program in a folder."""
    return PulumiEngine(
        directory=folder / "engine",
        project=folder,
        plugins=Plugins.STAND_IN,
        environment={
            "AWS_ENDPOINT_URL": cloud.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
    )


def test_a_yaml_program_adds_the_package_and_hears_what_it_must_correct(tmp_path: Path) -> None:
    properties = {"cluster": {"name": "shop", "region": "us-west-2"}, "identity": "iam"}
    joiner = {"type": "joiner:infra:Joiner", "properties": properties}
    file = tmp_path / "Pulumi.yaml"
    file.write_text(
        yaml.safe_dump({"name": "shop", "runtime": "yaml", "resources": {"joiner": joiner}})
    )

    with Cloud() as cloud:
        engine = engine_on(tmp_path, cloud)
        engine.add_package(str(CHECKOUT / "plugin"))
        with pytest.raises(
            EngineError, match="identity='iam' cannot be used: allowed is pod-ident"
        ):
            engine.preview("dev", REGION)

    assert yaml.safe_load(file.read_text())["packages"] == {"joiner": str(CHECKOUT / "plugin")}
    assert owned.belonging_to(engine.directory) == []


def test_the_cluster_may_be_created_by_the_same_program(tmp_path: Path) -> None:
    packages = {"joiner": str(CHECKOUT / "plugin")}
    (tmp_path / "Pulumi.yaml").write_text(
        yaml.safe_dump({"name": "shop", "runtime": "python", "packages": packages})
    )
    (tmp_path / "__main__.py").write_text(PROGRAM)
    said: list[str] = []

    with Cloud() as cloud:
        engine = engine_on(tmp_path, cloud)
        engine.show = said.append
        assert engine.preview("dev", REGION).create > 50

    assert any("joiner:dynamic/joiner:Drain" in line for line in said)
    assert owned.belonging_to(engine.directory) == []
