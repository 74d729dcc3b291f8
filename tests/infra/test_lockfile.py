"""`pulumi install` installs the packages with which the tests run."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import boto3
import pytest
import yaml
from packaging.requirements import Requirement

from tests.infra.lockfile import CHECKOUT, LOCK, closure, direct

PINS = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]


def test_the_project_file_states_how_packages_are_installed() -> None:
    project = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text())

    assert project["runtime"]["name"] == "python"
    # For the program, Pulumi's host looks for the environment in the project's folder. For the
    # providers in it, it looks in the program's. Without `main`, the two are one.
    assert project["runtime"]["options"] == {"toolchain": "pip", "virtualenv": ".venv"}
    assert "main" not in project


def test_stack_and_package_install_joiner_with_the_locked_packages() -> None:
    for folder in (CHECKOUT, CHECKOUT / "plugin"):
        text = (folder / "requirements.txt").read_text()
        project, lock = (line for line in text.splitlines() if not line.startswith("#"))
        # pip takes a path from the folder where it runs, but a file of requirements from the
        # folder of the file that names it.
        assert (folder / project.removeprefix("--editable ")).resolve() == CHECKOUT
        assert (folder / lock.removeprefix("-r ")).resolve() == LOCK


def test_every_line_of_the_lock_is_one_pinned_package() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin) for pin in PINS)
    names = [pin.partition("==")[0] for pin in PINS]
    assert names == sorted(set(names))


def test_direct_dependencies_are_locked_at_their_version() -> None:
    locked = dict(line.split("==") for line in PINS)

    for text in direct():
        asked = Requirement(text)
        assert asked.specifier.contains(locked[asked.name.lower()]), text


def test_transitive_dependencies_are_locked() -> None:
    found = closure(["pulumi"])

    assert {"pulumi", "grpcio", "protobuf"} <= found.keys()


def test_the_locked_packages_read_the_credentials_of_aws_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aws login` stores tokens that botocore reads only with the package awscrt."""
    session = "arn:aws:iam::123456789012:user/developer"
    (tmp_path / "config").write_text(f"[default]\nlogin_session = {session}\n")
    token = {
        "accessToken": {
            "accessKeyId": "AKIAEXAMPLE",
            "secretAccessKey": "secret",
            "sessionToken": "token",
            "accountId": "123456789012",
            "expiresAt": (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "refreshToken": "refresh",
        "dpopKey": "key",
        "clientId": "client",
    }
    (tmp_path / f"{sha256(session.encode()).hexdigest()}.json").write_text(json.dumps(token))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_LOGIN_CACHE_DIRECTORY", str(tmp_path))

    credentials = boto3.Session().get_credentials()

    assert credentials.method == "login"
    assert credentials.access_key == "AKIAEXAMPLE"
    assert "awscrt" in closure(direct())
    assert any(pin.startswith("awscrt==") for pin in PINS)
