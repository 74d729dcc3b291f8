"""The program detects a destroy, and refuses an unsafe one before the engine starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.lifecycle.destroying import is_destroy, is_destroy_of_part, is_replacement
from infra.lifecycle.teardown import _DrainProvider, drain_refusals
from testbed.environment import CHECKOUT

PROGRAM = "from infra.lifecycle.destroying import is_destroying; print(is_destroying())"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/bin/pulumi destroy --stack dev --preview-only --run-program", True),
        ("pulumi --cwd infra down --run-program", True),
        ("pulumi up --stack destroy", False),
        ("pulumi preview", False),
        ("pulumi", False),
        ("terraform destroy", False),
        ("", False),
    ],
)
def test_a_destroy_is_recognized_by_the_engines_command_line(line: str, expected: bool) -> None:
    assert is_destroy(line.split()) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/bin/pulumi destroy --yes --target urn:pulumi:dev::a --target-dependents", True),
        ("pulumi destroy -t urn:pulumi:dev::a", True),
        ("pulumi dn --target=urn:pulumi:dev::a", True),
        ("pulumi destroy --yes", False),
        ("pulumi up --target urn:pulumi:dev::a", False),
        ("vim destroy --target", False),
    ],
)
def test_a_destroy_of_a_part_is_recognized_by_the_command_line(line: str, expected: bool) -> None:
    assert is_destroy_of_part(line.split()) is expected


@pytest.mark.process
@pytest.mark.parametrize(("operation", "expected"), [("destroy", "True"), ("preview", "False")])
def test_the_engine_is_found_among_the_programs_parent_processes(
    tmp_path: Path, operation: str, expected: str
) -> None:
    engine = tmp_path / "pulumi"
    engine.symlink_to("/bin/sh")
    # The program is a grandchild process, as it is under Pulumi's language host.
    host = f'sh -c \'"{sys.executable}" -c "{PROGRAM}"; true\'; true'

    done = subprocess.run(
        [engine, "-c", host, operation, "--stack", "dev"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == expected


@pytest.mark.usefixtures("entries")
def test_a_silent_cluster_refuses_the_destroy_before_it_starts() -> None:
    props = {
        "cluster_name": "joiner",
        "region": "us-west-2",
        "installation": "organization/joiner/dev",
        "deployment": "/apis/apps/v1/namespaces/kube-system/deployments/karpenter",
        "timeout_seconds": 1,
        "delete_foreign": False,
    }

    (problem,) = drain_refusals(props)

    with pytest.raises(Exception, match="JOINER_ABANDON_CLUSTER=joiner") as refused:
        _DrainProvider().end(props)
    assert problem == str(refused.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pulumi up --yes --replace urn:x", True),
        ("pulumi up --target-replace=urn:x", True),
        ("pulumi up --yes", False),
        ("python tool --replace urn:x", False),
    ],
)
def test_a_forced_replacement_is_recognized_by_the_command_line(
    line: str, *, expected: bool
) -> None:
    assert is_replacement(line.split()) is expected
