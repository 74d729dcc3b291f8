"""The way to the API server is found as everywhere in Kubernetes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.access import AccessError, from_environment


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


def test_a_kubeconfig_may_hold_its_credentials_or_point_at_files_beside_it(
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


def test_a_program_prints_tokens_and_runs_again_before_they_expire(tmp_path: Path) -> None:
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


def test_a_pod_uses_what_the_kubelet_mounts(tmp_path: Path) -> None:
    for name, text in (("token", "t"), ("ca.crt", "ca"), ("namespace", "kube-system")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = from_environment(environ, mount=tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert (access.token, access.ca, access.namespace) == ("t", "ca", "kube-system")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "config", {"token": "topsecret"}, {})
    assert "topsecret" not in repr(from_environment({"KUBECONFIG": str(tmp_path / "config")}))


@pytest.mark.parametrize(
    ("user", "says"),
    [
        pytest.param({"auth-provider": {"name": "x"}}, "not supported", id="a provider"),
        pytest.param({"exec": {"command": "no-such-program"}}, "cannot be run", id="no program"),
        pytest.param({"exec": {"command": "false"}}, "false failed", id="a failure"),
        pytest.param({"exec": {"command": "true"}}, "printed no token", id="nothing"),
        pytest.param({"tokenFile": "missing"}, "cannot read the token", id="no token"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, user: dict[str, Any], says: str) -> None:
    write_kubeconfig(tmp_path / "config", user, {})
    with pytest.raises(AccessError, match=says):
        assert from_environment({"KUBECONFIG": str(tmp_path / "config")}).token


def test_without_either_it_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="KUBECONFIG is not set"):
        from_environment({}, mount=tmp_path)
