"""Real plugins are used if available, and the check costs almost no time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed.plugins.home import Home, Plugins, prepare
from testbed.processes import binaries
from testbed.progress import Progress


class Shop:
    """Stands in for the internet: serves plugins, or refuses connections."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.asked: list[str] = []

    def download(self, toolset: binaries.Toolset, folder: Path, *, progress: Progress) -> None:
        self.asked.append(toolset.releases[0].url)
        if not self.is_open:
            raise binaries.DownloadFailedError("the shop is closed")
        for name in toolset.packages:
            (folder / name).write_text("the real one")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOINER_CACHE", str(tmp_path / "cache"))
    binary = tmp_path / "pulumi"
    binary.write_text("engine")
    return binary


def open_shop(monkeypatch: pytest.MonkeyPatch, *, is_open: bool) -> Shop:
    shop = Shop(is_open=is_open)
    monkeypatch.setattr(binaries, "download", shop.download)
    return shop


def plugin(home: Home, name: str, version: str) -> Path:
    return home.directory / "plugins" / f"resource-{name}-v{version}" / f"pulumi-resource-{name}"


@pytest.mark.process
def test_real_plugins_are_fetched_once_for_all_homes(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(monkeypatch, is_open=True)

    homes = [prepare(tmp_path / name, engine=engine) for name in ("one", "two")]

    assert str(homes[1]) == "aws 7.51.1 (real), kubernetes 4.34.2 (real)"
    assert plugin(homes[1], "aws", "7.51.1").read_text() == "the real one"
    assert len(shop.asked) == 2  # one for each plugin
    assert all("/pulumi-resource-" in url and url.endswith(".tar.gz") for url in shop.asked)


@pytest.mark.process
def test_without_internet_each_plugin_is_requested_once(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(monkeypatch, is_open=False)

    homes = [prepare(tmp_path / name, engine=engine) for name in ("one", "two")]

    assert str(homes[1]) == "aws 7.51.1 (stand-in), kubernetes 4.34.2 (stand-in)"
    assert sys.executable in plugin(homes[1], "kubernetes", "4.34.2").read_text()
    assert len(shop.asked) == 2


@pytest.mark.process
def test_unavailable_real_plugins_are_an_error_if_required(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_shop(monkeypatch, is_open=False)

    with pytest.raises(binaries.DownloadFailedError, match="closed"):
        prepare(tmp_path / "home", engine=engine, plugins=Plugins.REAL)


def test_required_stand_ins_cause_no_download(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(monkeypatch, is_open=True)

    home = prepare(tmp_path / "home", engine=engine, plugins=Plugins.STAND_IN)

    assert shop.asked == []
    assert home.real == frozenset()
    assert os.access(plugin(home, "aws", "7.51.1"), os.X_OK)


def test_an_existing_plugin_home_is_updated(tmp_path: Path, engine: Path) -> None:
    prepare(tmp_path / "home", engine=engine, plugins=Plugins.STAND_IN)
    host = tmp_path / "home" / "bin" / "pulumi-language-python"
    host.write_text("of another interpreter")

    home = prepare(tmp_path / "home", engine=engine, plugins=Plugins.STAND_IN)

    assert f"exec {sys.executable} " in host.read_text()
    assert home.engine.read_text() == "engine"
