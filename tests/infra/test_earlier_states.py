"""States that earlier versions wrote can be destroyed by this one.

A state says by which class of which module its resource is deleted. Recorded here is what it said
from the first version on; a name that disappears leaves a stack that cannot be destroyed.
"""

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

from infra import (
    access,
    holdings,
    iam,
    identity,
    image,
    noderolename,
    podidentity,
    poolowners,
    teardown,
)
from infra.statefulprovider import StatefulProvider
from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins

RECORDED: dict[str, type[ResourceProvider]] = {
    "gASVKAAAAAAAAACMDmluZnJhLnRlYXJkb3dulIwOX0RyYWluUHJvdmlkZXKUk5QpgZQu": (
        teardown._DrainProvider
    ),
    "gASVLgAAAAAAAACMDmluZnJhLnRlYXJkb3dulIwUX05vdGhpbmdMZWZ0UHJvdmlkZXKUk5QpgZQu": (
        teardown._NothingLeftProvider
    ),
    "gASVKAAAAAAAAACMEWluZnJhLnJlbWVtYmVyaW5nlIwLUmVtZW1iZXJpbmeUk5QpgZQu": StatefulProvider,
    "gASVMAAAAAAAAACMDmluZnJhLmlkZW50aXR5lIwWX05vQXNzb2NpYXRpb25Qcm92aWRlcpSTlCmBlC4=": (
        identity._NoAssociationProvider
    ),
    "gASVLAAAAAAAAACMDGluZnJhLmFjY2Vzc5SMFF9Sb2xlTWFwcGluZ1Byb3ZpZGVylJOUKYGULg==": (
        access._RoleMappingProvider
    ),
    "gASVKwAAAAAAAACMC2luZnJhLmltYWdllIwUX1B1c2hlZEltYWdlUHJvdmlkZXKUk5QpgZQu": (
        image._PushedImageProvider
    ),
    "gASVJgAAAAAAAACMCWluZnJhLmlhbZSMEV9TcG90Um9sZVByb3ZpZGVylJOUKYGULg==": iam._SpotRoleProvider,
    "gASVMgAAAAAAAACMFmluZnJhLnN0YXRlZnVscHJvdmlkZXKUjBBTdGF0ZWZ1bFByb3ZpZGVylJOUKYGULg==": (
        StatefulProvider
    ),
}
"""What a state holds of a provider → the class that answers for it today."""


KINDS: dict[str, type[ResourceProvider]] = {
    "access-mapping": access._RoleMappingProvider,
    "drain": teardown._DrainProvider,
    "holdings": holdings._HoldingsProvider,
    "image": image._PushedImageProvider,
    "installation": StatefulProvider,
    "no-association": identity._NoAssociationProvider,
    "node-role-name": noderolename._NodeRoleNameProvider,
    "nothing-left": teardown._NothingLeftProvider,
    "pod-identity": podidentity._PodIdentityProvider,
    "pool-owners": poolowners._PoolOwnersProvider,
    "spot-role": iam._SpotRoleProvider,
}
"""What a state has held of a provider since providers are remembered by kind."""


@pytest.mark.parametrize(("kind", "provider"), KINDS.items(), ids=str)
def test_a_state_holds_no_more_of_us_than_a_kind(
    kind: str, provider: type[ResourceProvider]
) -> None:
    reference = (
        f"\x8c\x11infra.remembering\x94\x8c\x08provider\x94\x93\x94\x8c{chr(len(kind))}{kind}"
    )

    held = base64.b64decode(serialize_provider(provider()))

    assert reference.encode("latin-1") in held
    assert type(pickle.loads(held)) is provider


@pytest.mark.parametrize(("written", "provider"), RECORDED.items(), ids=lambda p: str(p)[-20:])
def test_what_an_earlier_version_wrote_is_understood(
    written: str, provider: type[ResourceProvider]
) -> None:
    assert type(pickle.loads(base64.b64decode(written))) is provider


@pytest.fixture
def engine(tmp_path: Path) -> PulumiEngine:
    """An engine with a stack `dev`, in which is a resource of ours."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text(json.dumps({"name": "joiner", "runtime": "python"}))
    (project / "__main__.py").write_text(
        "from infra.clusterapi import ClusterLocation\n"
        "from infra.teardown import Installation\n"
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


def test_a_version_that_has_renamed_everything_destroys_what_this_one_made(
    engine: PulumiEngine, tmp_path: Path
) -> None:
    later = tmp_path / "later" / "infra"
    shutil.copytree(
        CHECKOUT / "infra", later, ignore=shutil.ignore_patterns("__pycache__", ".venv")
    )
    (later / "statefulprovider.py").rename(later / "keeping.py")
    for path in later.rglob("*.py"):
        text = path.read_text().replace("infra.statefulprovider", "infra.keeping")
        path.write_text(text.replace("StatefulProvider", "Keeping"))
    both = os.pathsep.join([str(later.parent), str(CHECKOUT)])

    replace(engine, environment={"PYTHONPATH": both}).destroy("dev")

    engine.remove_stack("dev")
    assert not engine.stack_exists("dev")


def test_the_engine_destroys_what_an_earlier_version_made(engine: PulumiEngine) -> None:
    today = serialize_provider(StatefulProvider())
    earlier, *_ = (written for written, by in RECORDED.items() if by is StatefulProvider)
    states = [path for path in engine.directory.rglob("dev.json") if today in path.read_text()]
    assert states
    for state in states:
        state.write_text(state.read_text().replace(today, earlier))

    engine.destroy("dev")

    engine.remove_stack("dev")
    assert not engine.stack_exists("dev")
