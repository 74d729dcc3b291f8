"""The engine adds the package to a program, and previews the component."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from testbed.cloud import Cloud
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.plugins.home import Plugins
from testbed.processes import owned
from tests.infra import githost
from tests.infra.fromclone import clone
from tests.infra.stage import CHECKOUT
from tests.infra.test_readme import blocks_of

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
opts = pulumi.ResourceOptions()
joiner = pulumi.ComponentResource("joiner:infra:Joiner", "joiner", properties, opts, remote=True)
pulumi.export("nodeRole", joiner.nodeRoleName)
"""
"""What the SDK of any language does: it passes a type and properties to the engine."""
AUTHORITY = ssl.create_default_context(cafile=certifi.where()).get_ca_certs(binary_form=True)[0]
"""Any certificate: no API server of the page's cluster is ever called."""

PAGE = (CHECKOUT / "docs" / "how-to" / "package.md").read_text()
MISTAKES: Sequence[tuple[Mapping[str, Any], str]] = [
    # Pulumi's host finds these, with the schema of the package.
    ({"imgae": "joiner:test"}, "Property imgae does not exist on 'joiner:infra:Joiner'"),
    ({"replicas": "three"}, "replicas: Cannot assign type 'string' to type 'integer'"),
    # The host passes numbers for text. The component finds these.
    ({"tags": {"a": 1}}, "tags.a=1 cannot be used: allowed is text; put a number"),
    ({"identity": "iam"}, "identity='iam' cannot be used: allowed is pod-identity or irsa"),
]
"""Properties of a program → what the user reads."""


def engine_on(
    folder: Path,
    cloud: Cloud,
    *,
    more: Mapping[str, str] | None = None,
) -> PulumiEngine:
    """Return an engine on the program in a folder, with more environment variables."""
    return PulumiEngine(
        directory=folder / "engine",
        project=folder,
        plugins=Plugins.STAND_IN,
        environment={
            "AWS_ENDPOINT_URL": cloud.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            **(more or {}),
        },
    )


def cloud_of_the_page() -> Cloud:
    """Return a cloud with the page's cluster, whose API server does not exist."""
    authority = base64.b64encode(ssl.DER_cert_to_PEM_cert(AUTHORITY).encode()).decode()
    return Cloud(cluster_name="my-cluster", cluster_ca=authority)


def add_and_preview(project: Path) -> str:
    """Add the package to a program of the page, and preview it until it calls its cluster.

    The page's cluster does not exist: nothing but its API server is missing.

    Returns:
        The engine's output.

    """
    joiner = project.parent / "joiner"
    joiner.mkdir()  # Pulumi writes the package's schema here
    for part in CHECKOUT.iterdir():
        (joiner / part.name).symlink_to(part)

    with cloud_of_the_page() as cloud:
        engine = engine_on(project, cloud)
        engine.add_package("../joiner/plugin")
        output = preview_without_the_cluster(engine)

    assert owned.belonging_to(engine.directory) == []
    return output


def preview_without_the_cluster(engine: PulumiEngine) -> str:
    """Preview a program of the page, whose cluster does not exist; return the output."""
    said: list[str] = []
    engine.show = said.append
    engine.preview("dev", REGION)
    return "\n".join(said)


@pytest.mark.needs("pulumi-yaml")
def test_the_yaml_program_of_the_page_is_previewed_without_its_cluster(
    tmp_path: Path,
) -> None:
    (program,) = blocks_of(PAGE, "yaml")
    project = tmp_path / "package"
    project.mkdir()
    (project / "Pulumi.yaml").write_text(program)

    output = add_and_preview(project)

    packages = {"packages": {"joiner": "../joiner/plugin"}}
    written = yaml.safe_load((project / "Pulumi.yaml").read_text())
    assert written == yaml.safe_load(program) | packages
    assert program == (CHECKOUT / "examples/package/Pulumi.yaml").read_text()
    assert "pulumi package add ../joiner/plugin" in PAGE
    assert "joiner:infra:NodePools" in output
    assert "the effect of this change on nodes is unknown" in output


@dataclass(frozen=True)
class Released:
    """The released version of the page, at its Git URL."""

    added: str
    """What the page adds: folder in the repository, and version."""
    host: githost.GitHost

    @property
    def source(self) -> str:
        """URL of the repository and folder, without a scheme."""
        return self.added.partition("@")[0]

    @property
    def version(self) -> str:
        return self.added.partition("@")[2]


@contextmanager
def released(folder: Path) -> Iterator[Released]:
    """Serve this checkout as the released version that the page adds."""
    (added,) = re.findall(r"^pulumi package add (git\.\S+)$", PAGE, re.M)
    source, version = added.split("@")
    url, _, _ = source.rpartition("/")
    repository = clone(folder / "joiner")
    githost.commit(repository, f"v{version}")
    with githost.serve(repository, url, folder) as host:
        yield Released(added, host)


@pytest.mark.needs("pulumi-yaml")
def test_pulumi_fetches_the_package_from_the_git_url_of_the_page(tmp_path: Path) -> None:
    (program,) = blocks_of(PAGE, "yaml")
    project = tmp_path / "package"
    project.mkdir()
    (project / "Pulumi.yaml").write_text(program)

    with cloud_of_the_page() as cloud, released(tmp_path) as release:
        author = engine_on(project, cloud, more=release.host.environment)
        author.add_package(release.added)
        colleague = tmp_path / "colleague"
        colleague.mkdir()
        (colleague / "Pulumi.yaml").write_text((project / "Pulumi.yaml").read_text())
        other = engine_on(colleague, cloud, more=release.host.environment)
        other.install()

    written = yaml.safe_load((project / "Pulumi.yaml").read_text())
    assert written == yaml.safe_load(program) | {"packages": {"joiner": release.added}}
    name = f"resource-{release.source.replace('/', '_')}-v{release.version}"
    for engine in (author, other):
        assert (engine.home.directory / "plugins" / name / "plugin/PulumiPlugin.yaml").is_file()
        assert owned.belonging_to(engine.directory) == []
    assert f"{release.host.url}/git-upload-pack" in release.host.answered


def test_every_resource_of_a_package_from_a_git_url_belongs_to_that_package(
    tmp_path: Path,
) -> None:
    project = tmp_path / "package"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")

    with cloud_of_the_page() as cloud, released(tmp_path) as release:
        # What an SDK passes that was generated for this URL.
        origin = f'version="{release.version}", plugin_download_url="git://{release.source}"'
        program = PROGRAM.replace("ResourceOptions()", f"ResourceOptions({origin})")
        (project / "__main__.py").write_text(program)
        engine = engine_on(project, cloud, more=release.host.environment)
        engine.install_plugin(release.source, release.version)
        assert engine.preview("dev", REGION).create > 50

    assert owned.belonging_to(engine.directory) == []


@pytest.mark.needs("pulumi-yaml")
def test_a_yaml_program_hears_what_it_must_correct(tmp_path: Path) -> None:
    cluster = {"name": "shop", "region": "us-west-2"}

    with Cloud() as cloud:
        for wrong, words in MISTAKES:
            properties = {"cluster": cluster, **wrong}
            program = {
                "name": "shop",
                "runtime": "yaml",
                "packages": {"joiner": str(CHECKOUT / "plugin")},
                "resources": {"joiner": {"type": "joiner:infra:Joiner", "properties": properties}},
            }
            (tmp_path / "Pulumi.yaml").write_text(yaml.safe_dump(program))
            engine = engine_on(tmp_path, cloud)
            with pytest.raises(EngineError) as failure:
                engine.preview("dev", REGION)
            assert words in failure.value.output

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
