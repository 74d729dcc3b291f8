"""The client finds the API server as other Kubernetes clients do."""

from __future__ import annotations

import asyncio
import base64
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.access import EARLY, Access, AccessError, TokenCommand, from_environment


def write_kubeconfig(path: Path, user: dict[str, Any], cluster: dict[str, Any]) -> None:
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "other", "context": {"cluster": "none", "user": "nobody"}},
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))


def test_a_kubeconfig_may_embed_credentials_or_name_files_relative_to_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "ca.pem").write_text("the ca")
    (tmp_path / "token").write_text("abc\n")
    inline = base64.b64encode(b"the certificate").decode()
    write_kubeconfig(
        tmp_path / "config",
        {"client-certificate-data": inline, "tokenFile": "token"},
        {"certificate-authority": "ca.pem"},
    )
    access = from_environment({"KUBECONFIG": str(tmp_path / "config")})
    assert access.server == "https://127.0.0.1:1"
    assert (access.ca, access.certificate, access.token) == ("the ca", "the certificate", "abc")
    assert access.namespace == "shop"


def test_a_context_other_than_the_current_one_can_be_selected(tmp_path: Path) -> None:
    path = tmp_path / "config"
    write_kubeconfig(path, {"token": "abc"}, {})
    config = yaml.safe_load(path.read_text())
    config["contexts"].append({"name": "there", "context": {"cluster": "c", "namespace": "shop"}})
    config["current-context"] = "other"
    path.write_text(yaml.safe_dump(config))
    environ = {"KUBECONFIG": str(path)}

    selected = from_environment(environ, context="there")
    assert selected.namespace == "shop"
    assert selected.source == "context there · cluster c"
    with pytest.raises(AccessError, match="contexts has no 'nowhere'"):
        from_environment(environ, context="nowhere")


def test_equal_names_of_context_cluster_and_user_are_said_once(tmp_path: Path) -> None:
    path, arn = tmp_path / "config", "arn:aws:eks:eu-central-1:111122223333:cluster/prod"
    write_kubeconfig(path, {"token": "abc"}, {})
    config = yaml.safe_load(path.read_text())
    config["contexts"] = [{"name": arn, "context": {"cluster": arn, "user": arn}}]
    config["clusters"][0]["name"] = config["users"][0]["name"] = config["current-context"] = arn
    path.write_text(yaml.safe_dump(config))

    source = from_environment({"KUBECONFIG": str(path)}).source
    assert source == f"context = cluster = user {arn}"


def test_several_kubeconfigs_are_merged_as_in_kubectl(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "more" / "second"
    second.parent.mkdir()
    (second.parent / "token").write_text("abc\n")
    write_kubeconfig(second, {"tokenFile": "token"}, {})
    there = {"name": "there", "context": {"cluster": "c", "user": "u", "namespace": "first"}}
    first.write_text(yaml.safe_dump({"contexts": [there]}))
    paths = (tmp_path / "absent", first, second)
    environ = {"KUBECONFIG": os.pathsep.join(map(str, paths))}

    here, chosen = from_environment(environ), from_environment(environ, context="there")

    assert (here.namespace, here.token) == ("shop", "abc")
    assert (chosen.namespace, chosen.token) == ("first", "abc")
    first.write_text(yaml.safe_dump({"contexts": [there], "current-context": "there"}))
    assert from_environment(environ).namespace == "first"
    first.write_text("")
    assert from_environment(environ).namespace == "shop"


def test_a_kubeconfig_may_set_a_proxy_and_a_tls_server_name(tmp_path: Path) -> None:
    path = tmp_path / "config"
    write_kubeconfig(
        path, {}, {"proxy-url": "http://proxy:3128", "tls-server-name": "api.internal"}
    )

    access = from_environment({"KUBECONFIG": str(path)})

    assert (access.proxy, access.server_name) == ("http://proxy:3128", "api.internal")
    write_kubeconfig(path, {}, {"proxy-url": "socks5://proxy:1080"})
    with pytest.raises(
        AccessError, match=r"proxy-url socks5://proxy:1080: allowed is the URL of an HTTP"
    ):
        from_environment({"KUBECONFIG": str(path)})


def test_a_token_file_is_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "config", {"tokenFile": str(tmp_path / "token")}, {})
    (tmp_path / "token").write_text("first")
    access = from_environment({"KUBECONFIG": str(tmp_path / "config")})
    assert access.token == "first"
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").replace(tmp_path / "token")
    assert access.token == "second"
    (tmp_path / "token").unlink()
    assert access.token == "second"


@pytest.mark.process
def test_a_credential_plugin_runs_again_before_its_token_expires(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    program = tmp_path / "get-token"
    program.write_text(
        """#!/bin/sh
echo "$1 $REGION" >> "$(dirname "$0")/runs"
count=$(wc -l < "$(dirname "$0")/runs")
case $count in 1) end=2020-01-01T00:00:00Z ;; *) end=2999-01-01T00:00:00Z ;; esac
echo "{\\"status\\": {\\"token\\": \\"t$count\\", \\"expirationTimestamp\\": \\"$end\\"}}"
"""
    )
    program.chmod(0o755)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": str(program),
        "args": ["get-token"],
        "env": [{"name": "REGION", "value": "us-west-2"}],
    }
    write_kubeconfig(tmp_path / "config", {"exec": plugin}, {})
    access = from_environment({"KUBECONFIG": str(tmp_path / "config")})

    assert [access.token, access.token, access.token] == ["t1", "t2", "t2"]
    assert (tmp_path / "runs").read_text().splitlines() == ["get-token us-west-2"] * 2
    assert "t2" not in repr(access)


def token_command(folder: Path, script: str) -> TokenCommand:
    """A program that runs a shell script in a folder."""
    program = folder / "print-token"
    program.write_text(f"#!/bin/sh\ncd {folder}\n{script}")
    program.chmod(0o755)
    return TokenCommand((str(program),), {}, "client.authentication.k8s.io/v1beta1")


def token_until(end: str, *, then: str = "") -> str:
    """A program that prints a token with the number of its runs, and when the first run ends."""
    return (
        "echo run >> runs\n"
        f"case $(wc -l < runs) in 1) end={end} ;; *) end={then} ;; esac\n"
        f'echo "{{\\"status\\": {{\\"token\\": \\"t$(wc -l < runs)\\", '
        f'\\"expirationTimestamp\\": \\"$end\\"}}}}"\n'
    )


@pytest.mark.process
async def test_the_event_loop_is_not_blocked_by_a_credential_plugin(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    wait = "read go < gate\n"  # until the event loop opens it
    source = token_command(tmp_path, wait + token_until("2999-01-01T00:00:00Z"))
    access = Access("https://server", token_file=source)

    asked = [asyncio.create_task(access.bearer()) for _ in range(20)]
    async with asyncio.timeout(60):
        await asyncio.to_thread((tmp_path / "gate").write_text, "go\n")
        tokens = await asyncio.gather(*asked)

    assert set(tokens) == {"t1"}
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.process
async def test_requests_use_an_expiring_token_until_the_new_one_arrives(
    tmp_path: Path,
) -> None:
    soon = datetime.now(UTC) + EARLY / 2
    script = token_until(f"{soon:%Y-%m-%dT%H:%M:%SZ}", then="2999-01-01T00:00:00Z")
    source = token_command(tmp_path, script)
    access = Access("https://server", token_file=source)

    assert [await access.bearer(), await access.bearer()] == ["t1", "t1"]
    await asyncio.to_thread(source.read)

    assert await access.bearer() == "t2"
    assert (tmp_path / "runs").read_text() == "run\n" * 2


@pytest.mark.process
async def test_a_failure_of_the_credential_plugin_is_logged_once_until_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"test -e works || exit 3\n{token_until('2000-01-01T00:00:00Z', then='')}"
    source = token_command(tmp_path, script)
    access = Access("https://server", token_file=source)

    async def fail() -> None:
        with pytest.raises(AccessError, match="exit code 3"):
            await access.bearer()
        await asyncio.sleep(0)  # until the failure is logged

    for _ in range(9):
        await fail()
    assert caplog.text.count("cannot renew the token") == 1

    (tmp_path / "works").touch()
    assert await access.bearer() == "t1"
    (tmp_path / "works").unlink()
    await fail()
    assert caplog.text.count("cannot renew the token") == 2


def test_a_pod_uses_its_mounted_service_account_token(tmp_path: Path) -> None:
    for name, text in (("token", "t"), ("ca.crt", "ca"), ("namespace", "kube-system")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = from_environment(environ, mount=tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert (access.token, access.ca, access.namespace) == ("t", "ca", "kube-system")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "config", {"token": "topsecret"}, {})
    assert "topsecret" not in repr(from_environment({"KUBECONFIG": str(tmp_path / "config")}))


@pytest.mark.process
@pytest.mark.parametrize(
    ("user", "says"),
    [
        pytest.param({"auth-provider": {"name": "x"}}, "not supported", id="a provider"),
        pytest.param({"exec": {"command": "no-such-program"}}, "cannot be run", id="no program"),
        pytest.param({"exec": {"command": "false"}}, "false failed: exit code 1", id="a failure"),
        pytest.param({"exec": {"command": "true"}}, "printed no token", id="nothing"),
        pytest.param({"tokenFile": "missing"}, "cannot read the token", id="no token"),
    ],
)
def test_an_invalid_value_is_named(tmp_path: Path, user: dict[str, Any], says: str) -> None:
    write_kubeconfig(tmp_path / "config", user, {})
    with pytest.raises(AccessError, match=says):
        assert from_environment({"KUBECONFIG": str(tmp_path / "config")}).token


def test_a_server_without_a_scheme_is_http_as_in_kubectl(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "config", {}, {"server": "localhost:8080"})
    assert from_environment({"KUBECONFIG": str(tmp_path / "config")}).server == (
        "http://localhost:8080"
    )


def test_without_credentials_the_error_names_the_sources_searched(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="KUBECONFIG is not set"):
        from_environment({}, mount=tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"\tclusters: [", "is not YAML", id="not YAML"),
        pytest.param(b"", "has no current-context", id="empty"),
        pytest.param(b"hello", "expected a YAML mapping", id="text"),
        pytest.param(b"\xff\xfe\x00", "cannot be used", id="not text"),
        pytest.param(b"current-context: here\ncontexts: 7", "cannot be used", id="a number"),
        pytest.param(b"current-context: here\ncontexts: [{}]", "cannot be used", id="no name"),
        pytest.param(b"contexts: [{name: a}]", "has no current-context", id="no current context"),
        pytest.param(b"current-context: ''", "has no current-context", id="an empty context"),
        pytest.param(
            b"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
            b"clusters: [{name: c, cluster: {}}]",
            "server",
            id="no server",
        ),
        *(
            pytest.param(
                b"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
                b"clusters: [{name: c, cluster: {server: '" + server + b"'}}]",
                "expected the URL of an API server",
                id=f"the server {server.decode()}",
            )
            for server in (b"not a url", b"ftp://here", b"https://", b"https://here:port")
        ),
        pytest.param(
            b"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
            b"clusters: [{name: c, cluster: {server: x, certificate-authority: nowhere.pem}}]",
            "No such file",
            id="no CA",
        ),
    ],
)
def test_an_invalid_kubeconfig_is_refused_with_a_message(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)

    with pytest.raises(AccessError, match=said) as refused:
        from_environment({"KUBECONFIG": str(path)})

    assert str(path) in str(refused.value)
