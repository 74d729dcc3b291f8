"""Assemble the controller's image as `pulumi up` does, build it by hand, and compare the two.

The first is pushed to a registry on this machine and pulled from there. For the second, buildah
executes every step of the Dockerfile in a chroot, for both architectures. The base image is a
Debian with the same Python, since an image registry may be unreachable, or `--base`. The program
requires root on Debian or Ubuntu, with buildah and debootstrap. It takes about ten minutes and two
gigabytes of disk:

    make image
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.deployment.controller import USER
from infra.deployment.image import push
from infra.deployment.imagelayer import MACHINES
from infra.deployment.imageregistry import Repository
from infra.release import CHECKOUT
from tests.infra.registries import registries

SUITES: Mapping[str, str] = {"3.11": "bookworm", "3.13": "trixie"}
"""Debian's releases by their version of Python."""
PACKAGES = "python3,python3-pip,python-is-python3,ca-certificates"
ELF_MACHINES: Mapping[str, int] = {"amd64": 62, "arm64": 183}
"""`e_machine` in the ELF header of a native library, by architecture."""
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
WORLD = CHECKOUT / "docs" / "world.json"


class ImageError(Exception):
    """The image cannot be built here or fails a check; the message says what to do."""


class Buildah:
    """Runs buildah with its own storage, which is deleted with the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        places = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self._command = ("buildah", *places, "--storage-driver", "vfs")

    def ask(self, *arguments: str) -> str:
        """Run buildah and return its output. Raises `ImageError`."""
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise ImageError(f"buildah {arguments[0]} failed:\n{last}")
        return done.stdout.strip()

    def base(self, suite: str) -> str:
        """Build the base image for both architectures; return its name."""
        self.ask("manifest", "create", "localhost/base")
        for architecture in ELF_MACHINES:
            root = self._folder / architecture
            # A foreign architecture is only unpacked, since its programs cannot run here.
            foreign = [] if architecture == HERE else ["--foreign", f"--arch={architecture}"]
            options = ["--variant=minbase", f"--include={PACKAGES}", *foreign]
            done = subprocess.run(
                ["debootstrap", *options, suite, str(root)], capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if done.returncode:
                raise ImageError(f"debootstrap {suite} failed:\n{done.stdout[-2000:]}")
            container = self.ask("from", "--arch", architecture, "scratch")
            self.ask("add", "--quiet", container, str(root), "/")
            shutil.rmtree(root)
            self.ask("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container)
            image = f"localhost/base:{architecture}"
            self.ask("commit", "--quiet", container, image)
            self.ask("rm", container)
            self.ask("manifest", "add", "localhost/base", image)
        return "localhost/base"

    def build(self, base: str, on: str) -> str:
        """Build the Dockerfile for a platform; return the image's name."""
        trust = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        name = f"localhost/joiner:{on.rpartition('/')[2]}"
        self.ask(
            "bud", "--isolation", "chroot", "--pull=missing",
            "--platform", on,
            # buildah does not set this if it builds for a single platform.
            "--build-arg", f"BUILDPLATFORM=linux/{HERE}",
            "--build-arg", f"PYTHON={base}",
            # The package registry may use a certificate authority that only this machine trusts.
            "--volume", f"{trust}:/etc/ssl/certs/ca-certificates.crt:ro",
            "--tag", name,
            str(CHECKOUT),
        )  # fmt: skip
        return name

    def assemble(self, base: str, address: str) -> str:
        """Push the base to a registry, and assemble the image there; return its name."""
        stored = f"{address}/python"
        self.ask(
            "manifest", "push", "--all", "--format", "oci", "--tls-verify=false", base,
            f"docker://{stored}:base",
        )  # fmt: skip
        digest = Repository(stored).find("base")
        assert digest is not None
        target = Repository(f"{address}/joiner")
        push(target, tag="1", revision="checked", base=(f"{stored}:base", digest))
        return f"{address}/joiner:1"

    def pull(self, image: str, architecture: str) -> str:
        """Pull an image from a registry on this machine; return its name."""
        name = f"localhost/assembled:{architecture}"
        about = ("--arch", architecture, "--tls-verify=false")
        self.ask("tag", self.ask("pull", *about, image).splitlines()[-1], name)
        return name

    def files(self, image: str, architecture: str) -> Mapping[str, bytes]:
        """Return the contents of the files that the image adds to its base, by path."""
        container = self.ask("from", "--pull=never", "--arch", architecture, image)
        root = Path(self.ask("mount", container)) / "opt" / "joiner"
        found = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        self.ask("rm", container)
        return found

    def problems(self, image: str, architecture: str) -> Iterator[str]:
        """Yield the problems of an image."""
        said = json.loads(self.ask("inspect", "--type", "image", image))["OCIv1"]
        about = said["config"]
        if said["architecture"] != architecture:
            yield f"it says that it is for {said['architecture']}"
        if about.get("User") != f"{USER}:{USER}":
            yield f"it runs as {about.get('User')}, not as {USER}"
        if not about.get("Labels", {}).get("org.opencontainers.image.base.name"):
            yield "it does not say what it stands on"
        container = self.ask("from", "--pull=never", "--arch", architecture, image)
        root = Path(self.ask("mount", container)) / "opt" / "joiner"
        libraries = [path for path in root.rglob("*.so*") if path.is_file()]
        strange = [path for path in libraries if _machine(path) != ELF_MACHINES[architecture]]
        print(f"  {len(libraries)} native libraries, {_size(root) >> 20} MiB")
        if strange or not libraries:
            yield f"native libraries of another machine: {[path.name for path in strange]}"
        if architecture == HERE:
            yield from self._does_not_run(container)
        self.ask("rm", container)

    def _does_not_run(self, container: str) -> Iterator[str]:
        run = ("run", "--isolation", "chroot", "--volume", f"{WORLD}:/world.json:ro", container)
        python = ("--", "python", "-m", "controller")
        try:
            if self.ask(*run, "--", "id", "-u") != str(USER):
                yield f"its processes are not {USER}'s"
            self.ask(*run, *python, "run", "--help")
            print("  " + self.ask(*run, *python, "solve", "/world.json").splitlines()[-1])
        except ImageError as error:
            yield str(error)


def _machine(library: Path) -> int:
    header = library.read_bytes()[:20]
    (machine,) = struct.unpack("<H", header[18:20])
    return int(machine)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _suite() -> str:
    """Return the Debian release that has the Python of the Dockerfile."""
    (version,) = re.findall(r"^ARG PYTHON=.*python:(\d+\.\d+)", _dockerfile(), re.M)
    return SUITES[version]


def _dockerfile() -> str:
    return (CHECKOUT / "Dockerfile").read_text()


def check(base: str | None) -> bool:
    """Build the image for both architectures; return whether both pass the checks."""
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing:
        raise ImageError(f"apt-get install {' '.join(missing)}, and run this again")
    is_right = True
    with tempfile.TemporaryDirectory() as folder, registries(Path(folder)) as registry:
        buildah = Buildah(Path(folder))
        stands_on = base or buildah.base(_suite())
        pushed = buildah.assemble(stands_on, registry.address)
        for architecture in MACHINES:
            assembled = buildah.pull(pushed, architecture)
            built = buildah.build(stands_on, f"linux/{architecture}")
            for image in (assembled, built):
                print(image, flush=True)
                for problem in buildah.problems(image, architecture):
                    print(f"  {problem}")
                    is_right = False
            if buildah.files(assembled, architecture) != buildah.files(built, architecture):
                print("  the two images have different files")
                is_right = False
    return is_right


def main() -> int:
    """Build and check the image; the exit code is 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--base", help="an image to stand on, in place of Debian's Python")
    try:
        return 0 if check(parser.parse_args().base) else 1
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
