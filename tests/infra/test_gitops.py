"""The GitOps examples, as Pulumi, its operator, Flux and Argo CD read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config.reading import parse
from infra.nodepools import manifests_in, replace_placeholders
from testbed.environment import CHECKOUT
from tests.infra.test_program import run

EXAMPLES = CHECKOUT / "examples" / "gitops"
TEAMS = sorted(path.name for path in (EXAMPLES / "pools").iterdir())
KNOWN = {"CLUSTER_NAME": "joiner", "INSTANCE_PROFILE": "ProfileOfPlatform"}
CREATED = re.compile(r"--from-literal=(\w+)=\"\$\(pulumi stack output (\w+)\)\"")

Wire = dict[str, Any]


def documents(name: str) -> dict[str, Wire]:
    """Objects of an example by kind."""
    return {wire["kind"]: wire for wire in yaml.safe_load_all((EXAMPLES / name).read_text())}


def settings_in(mapping: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix("joiner:"): value for key, value in mapping.items()}


def made_by(settings: Mapping[str, str]) -> dict[str, Wire]:
    """Return the resources of a stack with these settings, by kind, on the test's cluster."""
    made = run(None, **{"image": "", **settings, "clusterName": "joiner"})
    assert settings["clusterName"] == "my-cluster"
    (node_class,) = made.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass").values()
    (pool,) = made.of("kubernetes:karpenter.sh/v1:NodePool").values()
    return {"EC2NodeClass": node_class, "NodePool": pool}


def checked(wires: list[Wire], folder: Path) -> list[Wire]:
    """Return manifests that a tool has rendered, if the API server would take them."""
    (folder / "rendered.yaml").write_text(yaml.safe_dump_all(wires))
    assert "${" not in json.dumps(wires)
    return manifests_in(folder)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("team", TEAMS)
def test_each_team_has_its_own_stack_on_the_platform_stack(team: str) -> None:
    stack = yaml.safe_load((EXAMPLES / "teams" / f"Pulumi.{team}.yaml").read_text())

    made = made_by(settings_in(stack["config"]))

    assert made["NodePool"]["metadata"]["name"] == team
    assert made["EC2NodeClass"]["spec"]["instanceProfile"] == "ProfileOfPlatform"


@pytest.mark.usefixtures("entries")
def test_pulumis_operator_runs_the_same_stack() -> None:
    wires = documents("operator/stack.yaml")
    spec, binding = wires["Stack"]["spec"], wires["ClusterRoleBinding"]
    (subject,) = binding["subjects"]

    # The stack's pod authenticates the operator with a TokenReview, which needs this role.
    assert binding["roleRef"]["name"] == "system:auth-delegator"
    assert subject["name"] == spec["serviceAccountName"]
    assert subject["namespace"] == wires["Stack"]["metadata"]["namespace"]
    made = made_by(settings_in(spec["config"]))

    assert made["NodePool"]["metadata"]["annotations"]["joiner.dev/stack"].startswith(
        "organization/joiner/"
    )
    assert (CHECKOUT / spec["repoDir"] / "Pulumi.yaml").is_file()
    assert (
        spec["stack"].split("/")[1]
        == yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text())["name"]
    )


def test_pulumi_deployments_install_what_the_program_requires_and_run_where_it_is() -> None:
    (path,) = (EXAMPLES / "deployments").iterdir()
    settings = yaml.safe_load(path.read_text())["settings"]

    assert (EXAMPLES / "teams" / path.name.replace(".deploy", "")).is_file()
    assert (CHECKOUT / settings["sourceContext"]["git"]["repoDir"] / "Pulumi.yaml").is_file()
    assert settings["operationContext"]["options"] == {"skipInstallDependencies": False}
    assert settings["operationContext"]["oidc"]["aws"].keys() == {"roleArn", "sessionName"}


def test_flux_sets_the_values_that_a_stack_would_set(tmp_path: Path) -> None:
    text = (EXAMPLES / "flux" / "pools.yaml").read_text()
    spec = documents("flux/pools.yaml")["Kustomization"]["spec"]
    outputs = dict(CREATED.findall(text))

    assert outputs == {"CLUSTER_NAME": "clusterName", "INSTANCE_PROFILE": "instanceProfile"}
    assert spec["postBuild"]["substituteFrom"] == [{"kind": "ConfigMap", "name": "joiner"}]
    wires = checked(replace_placeholders(manifests_in(CHECKOUT / spec["path"]), KNOWN), tmp_path)
    assert {wire["kind"] for wire in wires} == {"EC2NodeClass", "NodePool"}


def test_argo_cd_patches_every_value_that_differs_between_clusters(tmp_path: Path) -> None:
    source = documents("argocd/application.yaml")["Application"]["spec"]["source"]
    folder = CHECKOUT / source["path"]
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    wires = [yaml.safe_load((folder / name).read_text()) for name in kustomization["resources"]]

    for patch in source["kustomize"]["patches"]:
        for wire in wires:
            if wire["kind"] == patch["target"]["kind"]:
                for step in yaml.safe_load(patch["patch"]):
                    replace(wire, step)

    node_class, pool = checked(wires, tmp_path)
    assert node_class["spec"]["instanceProfile"] == "KarpenterNodeRole-my-cluster"
    assert pool["kind"] == "NodePool"


def replace(wire: Any, step: Wire) -> None:
    """Apply one step of a JSON patch (RFC 6902), which must be a replacement."""
    assert step["op"] == "replace"
    *way, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
    for part in way:
        wire = wire[int(part) if isinstance(wire, list) else part]
    assert last in wire
    wire[last] = step["value"]


@pytest.mark.parametrize("team", TEAMS)
def test_kustomize_lists_every_file(team: str) -> None:
    folder = EXAMPLES / "pools" / team
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]

    assert {*named, "kustomization.yaml"} == {path.name for path in folder.iterdir()}


def test_settings_of_the_examples_are_complete() -> None:
    for path in sorted((EXAMPLES / "teams").iterdir()):
        stack = yaml.safe_load(path.read_text())
        assert parse(settings_in(stack["config"])).platform_stack
