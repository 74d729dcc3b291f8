"""The program detects a destroy, and refuses an unsafe one before the engine starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.lifecycle.destroying import is_destroy, is_replacement
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
def test_a_destroy_is_known_by_the_engines_command_line(line: str, expected: bool) -> None:
    assert is_destroy(line.split()) is expected


@pytest.mark.parametrize(("operation", "expected"), [("destroy", "True"), ("preview", "False")])
def test_it_is_found_among_the_processes_that_started_the_program(
    tmp_path: Path, operation: str, expected: str
) -> None:
    engine = tmp_path / "pulumi"
    engine.symlink_to("/bin/sh")
    # The program is a grandchild, as it is behind the language host.
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
def test_a_cluster_that_does_not_answer_refuses_the_destroy_ahead_as_it_would_then() -> None:
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
def test_an_up_that_replaces_what_has_not_changed_is_known_as_such(
    line: str, *, expected: bool
) -> None:
    assert is_replacement(line.split()) is expected
