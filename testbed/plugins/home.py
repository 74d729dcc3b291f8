"""A home for Pulumi's engine, with a plugin for everything that Joiner's Pulumi program needs.

The language hosts and the host of dynamic providers are next to the engine. The two resource
plugins are under `PULUMI_HOME/plugins`. The engine therefore searches nothing on `PATH`, and
neither uses nor replaces the user's own plugins. A stand-in is a script that names the interpreter
which wrote it, so each home gets new scripts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from testbed.environment import CHECKOUT, cache_directory
from testbed.plugins import toolchain
from testbed.processes import binaries, owned
from testbed.progress import SILENCE, Progress

VERSIONS: Final[Mapping[str, str]] = {"aws": "7.51.1", "kubernetes": "4.34.2"}
"""Resource plugins, at exactly the versions of their SDKs: the engine accepts no other."""

PACKAGES: Final[Mapping[str, str]] = {"aws": "awsprovider", "kubernetes": "kubernetesprovider"}
BESIDE_ENGINE: Final[Mapping[str, str]] = {
    "pulumi-language-python": "languagehost",
    "pulumi-resource-pulumi-python": "dynamichost",
}


class Plugins(StrEnum):
    """Which resource plugins to use."""

    AUTOMATIC = "automatic"
    """The real plugins if they can be downloaded, else the stand-ins."""
    REAL = "real"
    STAND_IN = "stand-in"


@dataclass(frozen=True, slots=True)
class Home:
    """The files of an engine."""

    engine: Path
    """The engine's binary, with the hosts beside it."""
    directory: Path
    """`PULUMI_HOME`."""
    real: frozenset[str]
    """The names of the resource plugins that are real."""

    def __str__(self) -> str:
        """Return which plugins are real and which are stand-ins."""
        return ", ".join(
            f"{name} {version} ({'real' if name in self.real else 'stand-in'})"
            for name, version in VERSIONS.items()
        )


def prepare(
    directory: Path,
    *,
    engine: Path,
    plugins: Plugins = Plugins.AUTOMATIC,
    hosts: Sequence[Path] = (),
    is_installed: bool = False,
    progress: Progress = SILENCE,
) -> Home:
    """Create or update a home in `directory`, and return it.

    `hosts` are language hosts that are binaries. They replace stand-ins of the same name.
    With `is_installed`, programs run in the virtual environment that their Pulumi.yaml names.
    Raises `DownloadFailedError` if `plugins` is `REAL` and they cannot be downloaded.
    """
    folder = directory / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    # A link in this folder, because the engine looks for the hosts beside its real binary.
    own_engine = folder / "pulumi"
    if not own_engine.exists():
        _link_or_copy(engine, own_engine)
    for host in hosts:
        (folder / host.name).unlink(missing_ok=True)
        _link_or_copy(host, folder / host.name)
    for name in BESIDE_ENGINE.keys() - {host.name for host in hosts}:
        module = BESIDE_ENGINE[name]
        _write_script(folder / name, module, *([toolchain.INSTALLED] if is_installed else []))
    real = set()
    for name in VERSIONS:
        if _place(directory, name, _find_real(name, plugins, progress)):
            real.add(name)
    return Home(own_engine, directory, frozenset(real))


def _place(directory: Path, name: str, real: Path | None) -> bool:
    """Install a plugin where the engine looks; return whether it is the real one."""
    binary = f"pulumi-resource-{name}"
    folder = directory / "plugins" / f"resource-{name}-v{VERSIONS[name]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if real is None:
        _write_script(folder / binary, PACKAGES[name])
    else:
        _link_or_copy(real, folder / binary)
    return real is not None


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _write_script(path: Path, module: str, *options: str) -> None:
    # -P: the program's modules must not come before the standard library.
    command = [sys.executable, "-P", "-u", "-m", f"testbed.plugins.{module}", *options]
    path.unlink(missing_ok=True)  # it may be a link to a binary in the cache
    path.write_text(
        "#!/bin/sh\n"
        # The project's own modules come first: it may be another checkout of this one.
        f"PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{shlex.quote(str(CHECKOUT))}\n"
        "export PYTHONPATH\n"
        f'exec {shlex.join(command)} "$@"\n'
    )
    path.chmod(0o755)


def _find_real(name: str, plugins: Plugins, progress: Progress) -> Path | None:
    """Return the real plugin from the cache or the internet, or None to use a stand-in."""
    if plugins is Plugins.STAND_IN:
        return None
    toolset = _toolset(name)
    destination = cache_directory() / "plugins" / toolset.key
    refused = destination.with_name(f"{destination.name}.refused")
    if destination.exists():
        return destination / f"pulumi-resource-{name}"
    if plugins is Plugins.AUTOMATIC and refused.exists():
        return None
    try:
        _download(toolset, destination, progress)
    except binaries.DownloadFailedError as error:
        if plugins is Plugins.REAL:
            raise
        destination.parent.mkdir(parents=True, exist_ok=True)
        refused.write_text(f"{error}\nRemove this file to try again.\n")
        progress.note(f"{toolset.name}: {error}; a stand-in does its work (see {refused})")
        return None
    return destination / f"pulumi-resource-{name}"


def _toolset(name: str) -> binaries.Toolset:
    version, binary = VERSIONS[name], f"pulumi-resource-{name}"
    archive = f"{binary}-v{version}-linux-{binaries.ARCHITECTURE}.tar.gz"
    release = binaries.Release(
        url=f"https://get.pulumi.com/releases/plugins/{archive}", members={binary: binary}
    )
    return binaries.Toolset(
        name=f"{binary}-v{version}",
        module=Path(os.devnull),
        packages={binary: binary},
        releases=[release],
    )


def _download(toolset: binaries.Toolset, destination: Path, progress: Progress) -> None:
    with owned.temporary_directory(
        destination.with_name(f".{destination.name}.{os.getpid()}")
    ) as workplace:
        folder = workplace / "bin"
        folder.mkdir()
        binaries.download(toolset, folder, progress=progress)
        with suppress(OSError):  # another run was faster; its copy is equivalent
            folder.rename(destination)
