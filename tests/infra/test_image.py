"""The controller's image: its files, its configuration, and how it reaches a registry."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.deployment import image
from infra.deployment.image import _PushedImageProvider, configure, credentials, main, push
from infra.deployment.imagelayer import MACHINES, ROOT, PackagesUnavailableError, write_files
from infra.deployment.imageregistry import (
    BUNDLES,
    CONFIG,
    DOCKER_LAYER,
    INDEX,
    LAYER,
    MANIFEST,
    RegistryError,
    Repository,
    digest_of,
)
from infra.release import CHECKOUT, digest
from tests.infra.knownaws import Account
from tests.infra.lockfile import IMAGE_LOCK
from tests.infra.registries import ECR, PUBLIC, Registries, registries

REPOSITORY = f"{ECR}/joiner/joiner"
BASE = "docker/library/python"
PROPS = {"region": "us-west-2", "repository": REPOSITORY, "sources": "abc"}
BASE_CONFIG = {
    "created": "2026-11-01T00:00:00Z",
    "os": "linux",
    "config": {"Env": ["PATH=/usr/local/bin", "PYTHON_VERSION=3.13.5"], "Cmd": ["python3"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:base"]},
    "history": [{"created_by": "debian"}],
}


def write_wheel(folder: Path, name: str, version: str, platform: str) -> None:
    """Write a wheel with a module that names its platform, a script, and what a wheel needs."""
    stem = f"{name.replace('-', '_')}-{version}"
    tag = "py3-none-any" if platform == "any" else f"cp313-cp313-{platform}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name.replace('-', '_')}/__init__.py", f"PLATFORM = '{platform}'\n")
        wheel.writestr(f"{stem}.data/scripts/{name}", "#!python\n")
        wheel.writestr(f"{stem}.data/platlib/{name}_native.so", platform)
        about = f"{stem}.dist-info"
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"
        )
        wheel.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small wheel for every package of the image."""
    folder = tmp_path_factory.mktemp("wheels")
    for line in IMAGE_LOCK.read_text().splitlines()[1:]:
        name, _, version = line.partition("==")
        machines = [f"manylinux_2_28_{machine}" for machine in MACHINES.values()]
        for platform in machines if name == "numpy" else ["any"]:
            write_wheel(folder, name, version, platform)
    return folder


@pytest.fixture
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find the packages in a folder only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    """A registry in place of all others."""
    with registries(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture
def registry(
    running: Registries, account: Account, index: None, monkeypatch: pytest.MonkeyPatch
) -> Registries:
    """The registry, with a base image, reached by a proxy that decrypts TLS."""
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    reference = push_base(running)
    monkeypatch.setattr(image, "base_image", lambda: (f"{PUBLIC}/{BASE}:3.13-slim", reference))
    running.requests.clear()
    return running


DOCKER = "application/vnd.docker.distribution.manifest"


def push_base(
    running: Registries,
    index: str = INDEX,
    of_manifest: str = MANIFEST,
    of_layer: str = LAYER,
) -> str:
    """Push a base of both architectures, as on a public registry; return its digest."""
    base = Repository(f"{running.address}/{BASE}")
    manifests = []
    for architecture in (*MACHINES, "s390x"):
        layer = gzip.compress(architecture.encode(), mtime=0)
        config = json.dumps(BASE_CONFIG | {"architecture": architecture}).encode()
        for blob in (layer, config):
            base.push_blob(digest_of(blob), blob)
        manifest = {
            "schemaVersion": 2,
            "mediaType": of_manifest,
            "config": descriptor_of(config, CONFIG),
            "layers": [descriptor_of(layer, of_layer)],
        }
        content = json.dumps(manifest).encode()
        base.push_manifest(digest_of(content), content, of_manifest)
        platform = {"os": "linux", "architecture": architecture}
        manifests.append(descriptor_of(content, of_manifest) | {"platform": platform})
    # BuildKit's provenance of an image.
    manifests.append(manifests[0] | {"platform": {"os": "unknown", "architecture": "unknown"}})
    content = json.dumps({"schemaVersion": 2, "mediaType": index, "manifests": manifests}).encode()
    base.push_manifest(digest_of(content), content, index)
    return digest_of(content)


def descriptor_of(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


class Pulled:
    """An image as a node pulls it: the configuration and layers of one architecture."""

    def __init__(self, running: Registries, name: str, reference: str, architecture: str) -> None:
        repository = Repository(f"{running.address}/{name}")
        index = json.loads(repository.manifest(reference))
        (found,) = (
            one for one in index["manifests"] if one["platform"]["architecture"] == architecture
        )
        self.manifest = json.loads(repository.manifest(found["digest"]))
        self.config = json.loads(self._blob(repository, self.manifest["config"]["digest"]))
        blobs = [self._blob(repository, one["digest"]) for one in self.manifest["layers"]]
        self.layers = [gzip.decompress(blob) for blob in blobs]

    @staticmethod
    def _blob(repository: Repository, digest: str) -> bytes:
        file = io.BytesIO()
        repository.blob(digest, file)
        return file.getvalue()

    def entries(self) -> dict[str, tarfile.TarInfo]:
        """Return what is in the last layer, by path."""
        with tarfile.open(fileobj=io.BytesIO(self.layers[-1])) as archive:
            return {entry.name: entry for entry in archive}

    def files(self) -> dict[str, bytes]:
        """Return the contents of the files in the last layer, by path from `ROOT`."""
        with tarfile.open(fileobj=io.BytesIO(self.layers[-1])) as archive:
            top = str(ROOT).strip("/")
            return {
                entry.name.removeprefix(f"{top}/"): opened.read()
                for entry in archive
                if (opened := archive.extractfile(entry)) is not None
            }


def test_an_image_is_pushed_for_both_architectures_and_named_by_its_digest(
    registry: Registries,
) -> None:
    created = _PushedImageProvider().create(PROPS)

    assert created.outs is not None
    reference = created.outs["reference"]
    assert re.fullmatch(rf"{REPOSITORY}:abc@sha256:[0-9a-f]{{64}}", reference)
    for architecture, machine in MACHINES.items():
        pulled = Pulled(registry, "joiner/joiner", reference.partition("@")[2], architecture)
        assert pulled.layers[0] == architecture.encode(), "the base's layer"
        assert pulled.config["architecture"] == architecture
        contents = [digest_of(layer) for layer in pulled.layers]
        assert pulled.config["rootfs"]["diff_ids"] == ["sha256:base", contents[1]]
        assert pulled.config["config"]["Labels"]["org.opencontainers.image.revision"] == "abc"
        files = pulled.files()
        assert (
            files["packages/numpy/__init__.py"]
            == f"PLATFORM = 'manylinux_2_28_{machine}'\n".encode()
        )
        assert files["packages/numpy_native.so"]
        assert files["controller/__main__.py"] == (CHECKOUT / "controller/__main__.py").read_bytes()
        assert not any("scripts" in name or name.endswith(".pyc") for name in files)
        entries = pulled.entries().values()
        assert {(entry.uid, entry.gid, entry.mtime) for entry in entries} == {(0, 0, 0)}
        assert {entry.mode for entry in entries} == {0o755, 0o644}


def test_the_same_sources_give_the_same_image_and_push_nothing_again(registry: Registries) -> None:
    first = _PushedImageProvider().create(PROPS)
    target = Repository(REPOSITORY, ("AWS", "token"))
    registry.requests.clear()

    assert _PushedImageProvider().create(PROPS).outs == first.outs
    assert registry.requests == [f"GET {ECR}/v2/joiner/joiner/manifests/abc"] * 2
    registry.requests.clear()
    assert first.outs is not None
    assert first.outs["reference"].endswith(push(target, tag="other", revision="abc"))
    assert not [one for one in registry.pushes() if "/blobs/" in one]


def test_layers_of_a_base_in_the_same_registry_are_mounted(
    registry: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base has Docker's media types, as older ones have."""
    target = Repository(f"{registry.address}/team/joiner")
    types = (f"{DOCKER}.list.v2+json", f"{DOCKER}.v2+json", DOCKER_LAYER)
    base = f"{registry.address}/{BASE}:3.13-slim", push_base(registry, *types)
    monkeypatch.setattr(image, "write_files", write_architecture)
    uploaded: list[object] = []
    monkeypatch.setattr(target, "push_blob", with_record(target.push_blob, uploaded))

    push(target, tag="1", revision="abc", base=base)

    pulled = Pulled(registry, "team/joiner", "1", "arm64")
    assert pulled.layers[0] == b"arm64"
    assert [one["mediaType"] for one in pulled.manifest["layers"]] == [LAYER, LAYER]
    configurations = 2
    assert len(uploaded) == len(MACHINES) + configurations, "the base's layers are mounted"


def write_architecture(architecture: str, _controller: Path, root: Path) -> None:
    """Write a single file, in place of the controller and its packages."""
    root.mkdir()
    (root / "file").write_text(architecture)


def with_record(method: Callable[..., None], calls: list[object]) -> Callable[..., None]:
    """Return a method that records the first argument of each call."""

    def record(first: object, *others: object) -> None:
        calls.append(first)
        method(first, *others)

    return record


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("REQUESTS_CA_BUNDLE", "", f"cannot reach the registry {ECR}: set REQUESTS_CA_BUNDLE to"),
        (
            "HTTPS_PROXY",
            "http://127.0.0.1:9",
            f"cannot reach the registry {ECR}: check HTTPS_PROXY",
        ),
        ("PIP_FIND_LINKS", "/nowhere", "Set PIP_INDEX_URL to an index .* No matching distribution"),
    ],
)
def test_an_error_of_the_network_says_what_to_set(
    registry: Registries, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    for name in (variable, variable.lower()):
        monkeypatch.setenv(name, value)
    for name in BUNDLES if variable.endswith("BUNDLE") else ():
        monkeypatch.delenv(name, raising=False)

    with pytest.raises((RegistryError, PackagesUnavailableError), match=f"(?s){said}"):
        _PushedImageProvider().create(PROPS | {"sources": variable.lower()})


def test_a_registry_that_refuses_is_quoted_with_the_rights(
    registry: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "user", "another")

    with pytest.raises(
        RegistryError, match=rf"{ECR} refuses GET joiner/joiner: 401.*rights on ECR"
    ):
        _PushedImageProvider().create(PROPS)


def test_a_changed_blob_is_refused(registry: Registries) -> None:
    base = Repository(f"{registry.address}/{BASE}")
    folder = Path(registry.bundle).parent / "images"
    (changed,) = (
        path
        for path in folder.rglob("data")
        if path.parent.parent.parent.name == "sha256"
        and path.read_bytes()[:2] == b"\x1f\x8b"
        and gzip.decompress(path.read_bytes()) == b"s390x"
    )
    digest = f"sha256:{changed.parent.name}"
    content = changed.read_bytes()
    changed.write_bytes(content[:-1] + b"x")

    with pytest.raises(RegistryError, match=f"a request for {BASE}@{digest}"):
        base.blob(digest, io.BytesIO())
    changed.write_bytes(content)


def test_make_push_uses_the_login_that_is_stored(
    registry: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(image, "write_files", write_architecture)
    auth = base64.b64encode(b"ci:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"ghcr.io": {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)

    assert credentials("ghcr.io") == ("ci", "secret")
    assert credentials("quay.io") is None
    user = credentials(ECR)
    assert user is not None
    assert user[0] == "AWS"
    tag = f"{registry.address}/joiner:1"
    assert main(tag, tmp_path / "image") == 0
    assert (tmp_path / "image").read_text().startswith(f"{tag}@sha256:")
    assert main("joiner:1", tmp_path / "image") == 1
    assert "allowed is an image such as registry.example.com/joiner:1" in capsys.readouterr().err


def test_only_changed_sources_replace_the_image() -> None:
    provider = _PushedImageProvider()

    assert not provider.diff("x", PROPS, {**PROPS, "__provider": "y"}).changes
    assert provider.diff("x", PROPS, {**PROPS, "sources": "def"}).replaces == ["sources"]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, in its order."""
    text = re.sub(r"\s*\\\n\s*", " ", (CHECKOUT / "Dockerfile").read_text())
    lines = (line.partition(" ") for line in text.splitlines())
    return [(word, rest) for word, _, rest in lines if word.isupper()]


def test_the_dockerfile_gives_the_same_configuration() -> None:
    name, reference = image.base_image()
    stage = instructions()
    stage = stage[max(i for i, (word, _) in enumerate(stage) if word == "FROM") + 1 :]
    said = {word: rest for word, rest in stage if word not in ("ARG", "COPY")}
    pairs = {word: dict(one.split("=", 1) for one in shlex.split(said.pop(word)))
             for word in ("ENV", "LABEL")}  # fmt: skip
    pairs["LABEL"]["org.opencontainers.image.base.name"] = f"{name}@{reference}"
    labels = image.labels("abc", base=(name, reference))
    revision = {"org.opencontainers.image.revision": "abc"}  # `docker build --label`
    inherited = {"PATH": "/usr/local/bin", "PYTHON_VERSION": "3.13.5"}

    made = configure(BASE_CONFIG, "sha256:added", labels)["config"]

    assert dict(line.split("=", 1) for line in made.pop("Env")) == inherited | pairs["ENV"]
    assert made.pop("Labels") == pairs["LABEL"] | revision
    assert made == {
        "Cmd": json.loads(said.pop("CMD")),
        "ExposedPorts": {f"{port}/tcp": {} for port in said.pop("EXPOSE").split()},
        "User": said.pop("USER"),
        "WorkingDir": said.pop("WORKDIR"),
    }
    assert said == {}, "an instruction that the assembled image does not follow"


@pytest.mark.process
@pytest.mark.usefixtures("index")
def test_the_dockerfile_gives_the_same_files(tmp_path: Path) -> None:
    made, assembled = tmp_path / "made", tmp_path / "assembled"
    build = tmp_path / "build"
    build.mkdir()
    first, *_ = (i for i, (word, _) in enumerate(instructions()) if word == "WORKDIR")
    for word, rest in instructions()[first + 1 :]:
        if word == "FROM":
            break
        if word == "COPY":
            source, target = rest.split()
            copy = shutil.copytree if (CHECKOUT / source).is_dir() else shutil.copy
            copy(CHECKOUT / source, build / target)
        else:
            assert word == "RUN"
            subprocess.run(
                ["sh", "-c", rest.replace("python ", f"{shlex.quote(sys.executable)} ")
                 .replace(str(ROOT), str(made))],
                env={**os.environ, "TARGETARCH": "arm64"}, cwd=build, check=True,
            )  # fmt: skip
    copied = [rest for word, rest in instructions() if word == "COPY"][-1]

    write_files("arm64", CHECKOUT / "controller", assembled)

    assert copied == f"--from=build {ROOT} {ROOT}"
    assert contents(made) == contents(assembled)
    assert len(contents(made)) > 100


def contents(root: Path) -> Mapping[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_the_digest_follows_names_and_content_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("one")
    before = digest([tmp_path / "package"])

    (tmp_path / "package" / "a.pyc").write_text("compiled")
    assert digest([tmp_path / "package"]) == before

    (tmp_path / "package" / "prices.json").write_text("{}")
    assert digest([tmp_path / "package"]) != before
    (tmp_path / "package" / "prices.json").unlink()

    (tmp_path / "package" / "a.py").write_text("two")
    changed = digest([tmp_path / "package"])
    (tmp_path / "package" / "a.py").rename(tmp_path / "package" / "b.py")

    assert len({before, changed, digest([tmp_path / "package"])}) == 3
