"""The files that the controller's image adds to its base: the controller and its packages.

The same sources give the same files, and the same layer, on every machine: pip only downloads
wheels, at the versions in `controller/requirements.txt`, and no program of the image runs. The
Dockerfile runs this module too, so it needs only the standard library and pip:

    python imagelayer.py amd64 /opt/joiner
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures of images → machines in the names of wheels."""

PYTHON = "3.13"
"""The base image's Python."""

ROOT = PurePosixPath("/opt/joiner")
LEVEL = 6
"""Of compression: 9 takes three times as long, for a hundredth less."""

SHOWN_LINES = 8


class PackagesUnavailableError(Exception):
    """The packages of the image could not be downloaded; has the last lines of pip's output."""


def write_files(architecture: str, controller: Path, root: Path) -> None:
    """Write the files of an image to `root`, which is `ROOT` in the image.

    `controller` is the folder of the controller's source code.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(controller, root / "controller", ignore=ignored)
    with tempfile.TemporaryDirectory() as wheels:
        _download(_wheel_options(architecture), controller / "requirements.txt", wheels)
        for wheel in sorted(Path(wheels).iterdir()):
            _unpack(wheel, root / "packages")


def _wheel_options(architecture: str) -> list[str]:
    machine = MACHINES[architecture]
    platforms = [f"manylinux_2_28_{machine}", f"manylinux2014_{machine}"]
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON]
    return [*options, *(word for name in platforms for word in ("--platform", name))]


def _download(options: Sequence[str], requirements: Path, folder: str) -> None:
    # The list is complete. pip would read conditions such as `python_version < "3.12"` for the
    # Python that runs it, not for the image's.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--dest", folder, "--requirement", str(requirements), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()][-SHOWN_LINES:]
        raise PackagesUnavailableError(
            "pip cannot download the packages of the controller's image. Set PIP_INDEX_URL to an "
            "index that this machine reaches, HTTPS_PROXY to its proxy, PIP_CERT to the CA bundle "
            "of a proxy that decrypts TLS; or set joiner:image to an image that exists:\n"
            + "\n".join(lines)
        )


def _unpack(wheel: Path, packages: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            top, *below = PurePosixPath(member.filename).parts
            if top.endswith(".data"):
                # Scripts, headers and other data are not on the path of modules.
                if below[0] not in ("purelib", "platlib"):
                    continue
                path = packages.joinpath(*below[1:])
            else:
                path = packages.joinpath(top, *below)
            if not member.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))


class _Digesting(io.RawIOBase):
    """Passes on what is written, and computes its digest."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: object, /) -> int:
        self.sha256.update(content)  # type: ignore[arg-type]
        return self._file.write(content)  # type: ignore[arg-type]


def write_layer(root: Path, file: BinaryIO) -> str:
    """Write the files in `root` as a compressed layer; return the digest of its content."""
    with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as compressed:
        content = _Digesting(compressed)
        with tarfile.open(mode="w|", fileobj=content, format=tarfile.PAX_FORMAT) as archive:
            for path, name in _entries(root):
                entry = tarfile.TarInfo(name)
                entry.mode = 0o755 if path.is_dir() else 0o644
                if path.is_dir():
                    entry.type = tarfile.DIRTYPE
                    archive.addfile(entry)
                else:
                    entry.size = path.stat().st_size
                    with path.open("rb") as opened:
                        archive.addfile(entry, opened)
    return f"sha256:{content.sha256.hexdigest()}"


def _entries(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every file and folder with its name in the layer, a folder before its content."""
    top = ROOT.relative_to("/")
    yield root, str(top)
    for path in sorted(root.rglob("*")):
        yield path, str(top / path.relative_to(root).as_posix())


if __name__ == "__main__":
    write_files(sys.argv[1], Path("controller"), Path(sys.argv[2]))
