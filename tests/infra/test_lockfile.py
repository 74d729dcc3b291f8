"""`pulumi install` installs the packages with which the tests run."""

from __future__ import annotations

import re

import yaml
from packaging.requirements import Requirement

from tests.infra.lockfile import CHECKOUT, LOCK, closure, direct

LINES = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]


def test_the_project_file_states_how_packages_are_installed() -> None:
    project = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text())

    assert project["runtime"]["name"] == "python"
    # pip looks for the file where the program is, and makes the environment at the project's root.
    assert project["runtime"]["options"] == {"toolchain": "pip", "virtualenv": ".venv"}
    assert CHECKOUT / project["main"] / "requirements.txt" == LOCK


def test_program_and_providers_find_the_same_packages() -> None:
    project = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text())
    environment = project["runtime"]["options"]["virtualenv"]

    # Pulumi's host looks from the project's folder, its script for dynamic providers from the
    # program's.
    assert (CHECKOUT / project["main"] / environment).resolve() == CHECKOUT / environment


def test_every_line_of_the_lock_is_the_project_or_one_pinned_package() -> None:
    project, *pins = LINES

    assert project == "--editable .."
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin) for pin in pins)
    names = [pin.partition("==")[0] for pin in pins]
    assert names == sorted(set(names))


def test_direct_dependencies_are_locked_at_their_version() -> None:
    locked = dict(line.split("==") for line in LINES[1:])

    for text in direct():
        asked = Requirement(text)
        assert asked.specifier.contains(locked[asked.name.lower()]), text


def test_transitive_dependencies_are_locked() -> None:
    found = closure(["pulumi"])

    assert {"pulumi", "grpcio", "protobuf"} <= found.keys()
