"""Run the commands of docs/how-to/install.md from a clean clone, and `pulumi destroy`.

The program and its Python providers run in the virtual environment that `pulumi install` creates
from the lock. They find nothing of this checkout except what is installed there. pytest does not
collect this test by default, since it downloads about 60 packages from a registry:

    make clone
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.cloud.control import CloudControl
from testbed.plugins.engine import PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests.infra.stage import CHECKOUT, create_system_nodes, settings_of

pytestmark = pytest.mark.cluster


def clone(folder: Path) -> Path:
    """Copy the files under version control in their current state."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    known = subprocess.run(asked, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in filter(None, known.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((CHECKOUT / name).read_bytes())
    return folder


def test_install_up_and_destroy(tmp_path: Path) -> None:
    project = clone(tmp_path / "clone")
    with Testbed(directory=tmp_path / "testbed", until=Part.CLOUD) as testbed:
        assert testbed.cloud is not None
        create_system_nodes(testbed)
        engine = PulumiEngine(
            directory=tmp_path / "pulumi",
            project=project,
            environment=testbed.environment(),
            is_installed=True,
        )
        settings = settings_of(testbed, tmp_path)

        engine.install()
        assert engine.preview("dev", settings).create > 50
        assert engine.up("dev", settings).create > 50
        assert not engine.up("dev", settings).any
        engine.destroy("dev")

        assert CloudControl(testbed.cloud.url).leftovers() == {}
