"""A release has a published image; other checkouts build their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import release
from infra.release import main, released_image, sources_digest, version

IMAGE = "ghcr.io/example/joiner:1.0.0"


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout with the sources of an image, in which nothing is released."""
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller" / "main.py").write_text("print()")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.0"\n')
    monkeypatch.setattr(release, "CHECKOUT", tmp_path)
    monkeypatch.setattr(release, "RECORD", tmp_path / "released.json")
    return tmp_path


def test_the_sources_of_a_release_have_its_image(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([IMAGE]) == 0

    assert released_image() == IMAGE
    assert version() == "1.0.0"
    assert main([]) == 0
    assert capsys.readouterr().out == f"{IMAGE}\n"


def test_a_checkout_with_other_sources_builds_its_own_image(checkout: Path) -> None:
    main([IMAGE])
    before = sources_digest()

    (checkout / "controller" / "main.py").write_text("print(1)")

    assert sources_digest() != before
    assert released_image() is None


def test_before_the_first_release_every_checkout_builds_its_own_image(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert released_image() is None
    assert main([]) == 0
    assert capsys.readouterr().out == "none\n"
