"""A later version of the program can destroy a stack that this version created."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pulumi.dynamic import ResourceProvider
from pulumi.dynamic.dynamic import serialize_provider

from infra.deployment import image
from infra.guards import deletionguard, poolowners, removalproof
from infra.identity import access, controlleridentity, iam, podidentity
from infra.lifecycle import networksweep, teardown
from infra.lifecycle.providerregistry import PROVIDERS
from infra.lifecycle.statefulprovider import StatefulProvider
from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins

KINDS: dict[str, type[ResourceProvider]] = {
    "access-mapping": access._RoleMappingProvider,
    "drain": teardown._DrainProvider,
    "deletion-guard": deletionguard._DeletionGuardProvider,
    "image": image._PushedImageProvider,
    "installation": StatefulProvider,
    "network-sweep": networksweep._NetworkSweepProvider,
    "no-association": controlleridentity._NoAssociationProvider,
    "nothing-left": teardown._NothingLeftProvider,
    "pod-identity": podidentity._PodIdentityProvider,
    "pool-owners": poolowners._PoolOwnersProvider,
    "removal-proof": removalproof._RemovalProofProvider,
    "spot-role": iam._SpotRoleProvider,
}
"""Kind in a state → class of the provider."""


@pytest.mark.parametrize(("kind", "provider"), KINDS.items(), ids=str)
def test_a_state_references_a_provider_only_by_its_kind(
    kind: str, provider: type[ResourceProvider]
) -> None:
    module = "infra.lifecycle.providerregistry"
    reference = f"\x8c{chr(len(module))}{module}\x94\x8c\x08provider\x94\x93\x94\x8c"

    held = base64.b64decode(serialize_provider(provider()))

    assert f"{reference}{chr(len(kind))}{kind}".encode("latin-1") in held
    assert type(pickle.loads(held)) is provider


def test_every_provider_kind_is_registered() -> None:
    assert KINDS.keys() == PROVIDERS.keys()


@pytest.fixture
def engine(tmp_path: Path) -> PulumiEngine:
    """An engine with a stack `dev`, in which is a resource of ours."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text(json.dumps({"name": "joiner", "runtime": "python"}))
    (project / "__main__.py").write_text(
        "from infra.clusterapi import ClusterLocation\n"
        "from infra.lifecycle.teardown import Installation\n"
        "Installation('installation', ClusterLocation('joiner', 'us-west-2'), 'dev')\n"
    )
    engine = PulumiEngine(
        directory=tmp_path / "engine",
        project=project,
        environment={"PYTHONPATH": str(CHECKOUT)},
        plugins=Plugins.STAND_IN,
    )
    engine.up("dev")
    return engine


@pytest.mark.needs("pulumi")
def test_a_later_version_with_renamed_modules_can_destroy_the_stack(
    engine: PulumiEngine, tmp_path: Path
) -> None:
    later = tmp_path / "later" / "infra"
    shutil.copytree(CHECKOUT / "infra", later, ignore=shutil.ignore_patterns("__pycache__"))
    (later / "lifecycle" / "statefulprovider.py").rename(later / "keeping.py")
    for path in later.rglob("*.py"):
        text = path.read_text().replace("infra.lifecycle.statefulprovider", "infra.keeping")
        path.write_text(text.replace("StatefulProvider", "Keeping"))
    both = os.pathsep.join([str(later.parent), str(CHECKOUT)])

    replace(engine, environment={"PYTHONPATH": both}).destroy("dev")

    engine.remove_stack("dev")
    assert not engine.stack_exists("dev")
