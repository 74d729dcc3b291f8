"""The sources of the testbed's binaries: cache, release, build."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testbed.environment import cache_directory
from testbed.processes import binaries
from testbed.processes.binaries import BinaryUnavailableError, Release, Supply, Toolset
from testbed.progress import Progress, Stage

SCRIPT = b"#!/bin/sh\necho released\n"


@dataclass(frozen=True)
class Listener(Progress):
    """Records the messages to the user."""

    notes: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        self.stages.append(title)
        yield self

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        assert total is None or completed <= total


@dataclass
class Site:
    """A web site with the files put on it."""

    url: str
    files: dict[str, bytes]
    asked: list[str]


@pytest.fixture
def site() -> Iterator[Site]:
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = files.get(self.path.lstrip("/"))
            self.send_response(200 if content is not None else 404)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield Site(f"http://127.0.0.1:{server.server_port}", files, asked)
    server.shutdown()
    server.server_close()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A Go module whose program says that it was built."""
    module = tmp_path / "module"
    (module / "greet").mkdir(parents=True)
    (module / "go.mod").write_text("module example.com/greeter\n\ngo 1.26.0\n")
    program = 'package main\n\nvar version string\n\nfunc main() { println("built " + version) }\n'
    (module / "greet" / "main.go").write_text(program)
    return module


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, module: Path) -> Path:
    """The Go that this machine has or, as on a user's machine, the one in the shared cache."""
    command = binaries.find_go(cache_directory(), module)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    return command


def make_toolset(module: Path, *releases: Release) -> Toolset:
    return Toolset(
        name="greeter-v1",
        module=module,
        packages={"greet": "./greet"},
        releases=releases or [unreachable()],
        ldflags="-X main.version=v1",
    )


def unreachable() -> Release:
    return Release(url="http://127.0.0.1:9/greet", binary="greet")


def said_by(binary: Path) -> str:
    ended = subprocess.run([binary], capture_output=True, text=True, check=True)
    return (ended.stdout + ended.stderr).strip()


@pytest.mark.process
def test_a_release_is_downloaded_verified_and_executable(
    site: Site, module: Path, tmp_path: Path
) -> None:
    site.files["greet"] = SCRIPT
    site.files["SHA256SUMS"] = f"{hashlib.sha256(SCRIPT).hexdigest()}  greet\n".encode()
    release = Release(url=f"{site.url}/greet", checksums=f"{site.url}/SHA256SUMS", binary="greet")

    folder = Supply(cache=tmp_path / "cache").obtain(make_toolset(module, release))

    assert said_by(folder / "greet") == "released"


@pytest.mark.process
def test_only_the_requested_binaries_of_an_archive_are_extracted(
    site: Site, module: Path, tmp_path: Path
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("greeter-v1/bin/greet", "greeter-v1/README.md", "../escaped"):
            member = tarfile.TarInfo(name)
            member.size = len(SCRIPT)
            archive.addfile(member, io.BytesIO(SCRIPT))
    site.files["greeter.tar.gz"] = packed.getvalue()
    release = Release(url=f"{site.url}/greeter.tar.gz", members={"greeter-v1/bin/": ""})

    folder = Supply(cache=tmp_path / "cache").obtain(make_toolset(module, release))

    assert [file.name for file in folder.iterdir()] == ["greet"]
    assert said_by(folder / "greet") == "released"


@pytest.mark.process
def test_a_release_with_another_checksum_is_not_used(
    site: Site, module: Path, tmp_path: Path, go: Path
) -> None:
    site.files["greet"] = SCRIPT
    site.files["greet.sha256"] = b"0" * 64
    release = Release(url=f"{site.url}/greet", checksums=f"{site.url}/greet.sha256", binary="greet")
    listener = Listener()

    folder = Supply(cache=tmp_path / "cache", progress=listener).obtain(
        make_toolset(module, release)
    )

    assert said_by(folder / "greet") == "built v1"
    assert "does not have its published SHA-256" in listener.notes[0]


@pytest.mark.process
def test_without_internet_the_binary_is_built_with_a_note(
    module: Path, tmp_path: Path, go: Path
) -> None:
    listener = Listener()

    folder = Supply(cache=tmp_path / "cache", progress=listener).obtain(make_toolset(module))

    assert said_by(folder / "greet") == "built v1"
    assert listener.notes == [
        "greeter-v1: 127.0.0.1:9 cannot be reached (no connection);"
        " building it from its Go module instead"
    ]
    assert listener.stages == ["Go modules of greeter-v1", "building greeter-v1"]


def test_one_failed_download_makes_the_whole_set_be_built(
    site: Site, module: Path, tmp_path: Path, go: Path
) -> None:
    releases = [Release(url=f"{site.url}/{name}", binary=name) for name in ("a", "b", "c")]

    Supply(cache=tmp_path / "cache").obtain(make_toolset(module, *releases))

    assert site.asked == ["/a"]


def test_a_cached_set_is_neither_downloaded_nor_built_again(
    module: Path, tmp_path: Path, go: Path
) -> None:
    toolset = make_toolset(module)
    first = Supply(cache=tmp_path / "cache").obtain(toolset)
    listener = Listener()

    second = Supply(cache=tmp_path / "cache", progress=listener).obtain(toolset)

    assert second == first
    assert (listener.notes, listener.stages) == ([], [])


def test_a_changed_pin_is_another_set(module: Path) -> None:
    before = make_toolset(module).key
    (module / "go.mod").write_text("module example.com/greeter\n\ngo 1.26.1\n")

    assert make_toolset(module).key != before


@pytest.mark.parametrize("decision", ["FLAGS", "PINNED"])
def test_another_way_to_build_is_another_set(
    decision: str, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_toolset(module).key
    monkeypatch.setattr(binaries, decision, {})

    assert make_toolset(module).key != before


@pytest.mark.process
def test_the_modules_of_the_next_set_are_downloaded_while_a_set_compiles(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = make_following(module, tmp_path)
    # Opening a named pipe blocks until its other end is opened: the two run at the same time.
    os.mkfifo(tmp_path / "pipe")
    place_go(
        tmp_path,
        monkeypatch,
        f'"list {following.module}") echo > {tmp_path}/pipe ;;'
        f' "build {module}") read fetched < {tmp_path}/pipe ;;',
    )

    Supply(cache=tmp_path / "cache", upcoming=[following]).obtain(make_toolset(module))

    assert calls_of_go(tmp_path).count(f"list {following.module}") == 1


@pytest.mark.process
def test_a_next_set_that_is_cached_is_not_downloaded_again(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = make_following(module, tmp_path)
    (tmp_path / "cache" / "binaries" / following.key).mkdir(parents=True)
    place_go(tmp_path, monkeypatch)

    Supply(cache=tmp_path / "cache", upcoming=[following]).obtain(make_toolset(module))

    assert f"build {module}" in calls_of_go(tmp_path)
    assert f"list {following.module}" not in calls_of_go(tmp_path)


def make_following(module: Path, tmp_path: Path) -> Toolset:
    folder = tmp_path / "following"
    shutil.copytree(module, folder)
    return dataclasses.replace(make_toolset(folder), name="following-v1")


def place_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behavior: str = "") -> None:
    """Make a program be Go that records its calls and acts on some, as `case` items say."""
    program = tmp_path / "go-path" / "go"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$1 $PWD" >> {tmp_path}/calls\ncase "$1 $PWD" in {behavior}\n'
        f"env*) echo go1.99 ;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def calls_of_go(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_two_concurrent_runs_build_once(module: Path, tmp_path: Path, go: Path) -> None:
    listeners = [Listener(), Listener()]

    def obtain(listener: Listener) -> Path:
        return Supply(cache=tmp_path / "cache", progress=listener).obtain(make_toolset(module))

    with ThreadPoolExecutor(2) as together:
        folders = list(together.map(obtain, listeners))

    assert folders[0] == folders[1]
    built = [stage for listener in listeners for stage in listener.stages if "building" in stage]
    assert len(built) == 1


def test_a_failed_build_reports_the_error_and_leaves_nothing_in_the_cache(
    module: Path, tmp_path: Path, go: Path
) -> None:
    (module / "greet" / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    toolset = make_toolset(module)

    with pytest.raises(BinaryUnavailableError, match="undefined: undefined"):
        Supply(cache=tmp_path / "cache").obtain(toolset)

    left = [entry.name for entry in (tmp_path / "cache" / "binaries").iterdir()]
    assert left == [f"{toolset.key}.lock"]


def test_a_build_does_not_change_the_module(module: Path, tmp_path: Path, go: Path) -> None:
    before = {file: file.read_bytes() for file in module.rglob("*") if file.is_file()}

    Supply(cache=tmp_path / "cache").obtain(make_toolset(module))

    assert {file: file.read_bytes() for file in module.rglob("*") if file.is_file()} == before


@pytest.mark.process
@pytest.mark.parametrize(
    ("installed", "is_own"),
    [("go1.26.8", False), ("go1.26.9", True), ("go1.27", True), ("devel +abc", False)],
)
def test_a_go_that_is_too_old_for_the_module_is_not_used(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, is_own: bool
) -> None:
    (module / "go.mod").write_text("module example.com/greeter\n\ngo 1.26.9\n")
    own = tmp_path / "bin" / "go"
    own.parent.mkdir()
    own.write_text(f"#!/bin/sh\necho {installed}\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(own.parent), prepend=":")
    packaged = tmp_path / "go" / binaries.GO_PACKAGE.replace("==", "-") / "go" / "bin" / "go"
    packaged.parent.mkdir(parents=True)
    packaged.touch()

    assert binaries.find_go(tmp_path, module) == (own if is_own else packaged)


def test_the_control_plane_has_the_chosen_version_and_the_rest_is_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOINER_KUBERNETES", "1.31")

    older, newest = binaries.control_plane(), binaries.kubernetes()

    assert binaries.kubernetes_version().startswith("v1.31.")
    assert older.name == f"kubernetes-{binaries.kubernetes_version()}"
    assert newest.packages.keys() - older.packages.keys() == {"etcd", "kwok", "kwokctl"}
    minor = newest.name.removeprefix("kubernetes-v").rpartition(".")[0]
    for chosen in ("", minor):
        monkeypatch.setenv("JOINER_KUBERNETES", chosen)
        assert binaries.control_plane() == newest


def test_an_unavailable_version_is_refused_with_the_available_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOINER_KUBERNETES", "1.29")

    with pytest.raises(BinaryUnavailableError, match=r"JOINER_KUBERNETES=1\.29.* 1\.31 and v1\."):
        binaries.control_plane()


def test_a_replaced_dependency_has_the_version_of_its_replacement(module: Path) -> None:
    (module / "go.mod").write_text(
        "module m\n\ngo 1.26\n\nreplace example.com/a => example.com/a v1.0.0\n\n"
        "require (\n\texample.com/a v1.0.1\n\texample.com/b v2.0.0\n)\n"
    )

    assert binaries.pinned_version(module, "example.com/a") == "v1.0.0"
    assert binaries.pinned_version(module, "example.com/b") == "v2.0.0"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({"JOINER_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a", id="own"),
        pytest.param({"XDG_CACHE_HOME": "/b"}, "/b/joiner", id="xdg"),
        pytest.param({}, "/home/somebody/.cache/joiner", id="home"),
    ],
)
def test_an_environment_variable_sets_the_cache(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for name in ("JOINER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert cache_directory() == Path(expected)


@pytest.mark.parametrize(
    "toolset", [binaries.kubernetes(), binaries.pulumi()], ids=lambda t: t.name
)
def test_a_release_exists_for_every_binary_of_a_set(toolset: Toolset) -> None:
    released = {release.binary for release in toolset.releases}
    for release in toolset.releases:
        for path, name in (release.members or {}).items():
            released.add(name or path.rstrip("/"))

    assert set(toolset.packages) <= released


def test_an_unknown_binary_is_named_in_the_error() -> None:
    with pytest.raises(BinaryUnavailableError, match="'kubeadm'"):
        binaries.ensure("kubeadm")
