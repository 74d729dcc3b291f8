"""The chart and the manifests contain what the Pulumi component creates."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deployment import manifests
from infra.deployment.controller import ACCOUNT
from infra.deployment.customresources import definitions
from testbed.environment import CHECKOUT
from testbed.processes import binaries
from tests.infra.test_program import STACK, Made, run, standard

CHARTS = CHECKOUT / "charts"
ROLE = "arn:aws:iam::123456789012:role/KarpenterControllerRole-joiner"
GIVEN = {
    "clusterName": "joiner",
    "region": "us-west-2",
    "installation": STACK,
    "interruptionQueue": "joiner",
    "controllerRoleArn": ROLE,
    "image": "joiner:1",
}
"""The values of the chart that follow from what `run` creates."""

CASES: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "an identity by IRSA": {"identity": "irsa"},
    "annotations for Prometheus": {
        "metricsDiscovery": "annotations",
        "settings": {"METRICS_PORT": "9090"},
        "podAnnotations": {"team": "platform"},
    },
    "a ServiceMonitor": {"metricsDiscovery": "service-monitor"},
    "every feature": {
        "settings": {
            "FEATURE_GATES": "NodeOverlay=true,StaticCapacity=true,CapacityBuffer=true",
            "GANG_SCHEDULING": "true",
            "IGNORE_DRA_REQUESTS": "false",
            "SURGE_SINGLE_REPLICAS": "true",
            "LEADER_ELECTION_NAME": "another",
            "LEADER_ELECTION_NAMESPACE": "leases",
            "HEALTH_PROBE_PORT": "9091",
        },
    },
    "other pods": {
        "name": "joiner",
        "replicas": 3,
        "cpu": "500m",
        "memory": "2Gi",
        "extraLabels": {"team": "platform"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "imagePullSecrets": ["registry"],
        "dnsPolicy": "Default",
        "env": {"HTTPS_PROXY": "http://proxy:3128"},
        "settings": {"MEMORY_LIMIT": "1000000000"},
    },
}

ALSO = {"an identity by IRSA": {"oidcProvider": "create"}}
"""Settings of the stack that have no value in the chart, by case."""

Objects = dict[tuple[str, str], dict[str, Any]]
"""Objects without their kind and version, by kind and name."""


def rendered(chart: str, values: Mapping[str, Any], namespace: str = "kube-system") -> Objects:
    """Return the objects that Helm renders."""
    done = subprocess.run(
        [binaries.ensure("charts"), CHARTS / chart, namespace],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout).values()
    return keyed(wire for text in texts for wire in yaml.safe_load_all(text))


def keyed(wires: Any) -> Objects:
    found: Objects = {}
    for wire in filter(None, wires):
        kind = wire["kind"]
        plain = {key: value for key, value in wire.items() if key not in ("apiVersion", "kind")}
        found[kind, wire["metadata"]["name"]] = ordered(plain)
    return found


def ordered(wire: dict[str, Any]) -> dict[str, Any]:
    """The object, with the rules of a role in one order."""
    if "rules" not in wire:
        return wire
    rules = sorted(wire["rules"], key=lambda rule: json.dumps(rule, sort_keys=True))
    return {**wire, "rules": rules}


def created(made: Made) -> Objects:
    """The controller's objects that the program creates, as plain JSON."""
    own = {"NodePool", "EC2NodeClass", "CustomResourceDefinition"}
    found: Objects = {}
    for token, _, inputs in made.resources:
        kind = token.rpartition(":")[2]
        if not token.startswith("kubernetes:") or kind in own:
            continue
        wire = {"apiVersion": "", "kind": kind, **json.loads(json.dumps(inputs))}
        annotations = wire["metadata"].pop("annotations")
        others = {key: v for key, v in annotations.items() if not key.startswith("pulumi.com/")}
        wire["metadata"] |= {"annotations": others} if others else {}
        if kind == "Deployment":
            # Pulumi alone knows the UID of the ServiceAccount, and replaces the pods with it.
            of_pods = wire["spec"]["template"]["metadata"]
            del of_pods["annotations"][ACCOUNT]
            if not of_pods["annotations"]:
                del of_pods["annotations"]
        found |= keyed([wire])
    return found


@pytest.mark.cluster  # builds a Go program, as the control plane
@pytest.mark.usefixtures("entries", "hooks")
@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_what_the_stack_creates(case: str) -> None:
    values = CASES[case]
    settings = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }

    made = created(run(None, **settings, **ALSO.get(case, {})))

    assert rendered("joiner", GIVEN | values) == made
    assert len(made) >= 9


@pytest.mark.cluster
def test_the_chart_of_crds_renders_the_stacks_crds() -> None:
    assert rendered("joiner-crds", {}) == keyed(definitions())


@pytest.mark.cluster
@pytest.mark.parametrize("missing", GIVEN)
def test_the_chart_names_a_value_that_is_missing(missing: str) -> None:
    with pytest.raises(AssertionError, match=f"{missing} is required"):
        rendered("joiner", {key: value for key, value in GIVEN.items() if key != missing})


@pytest.mark.usefixtures("entries")
def test_the_manifests_have_placeholders_for_cluster_specific_values() -> None:
    text = manifests.plain()
    known = {
        "CLUSTER_NAME": "joiner",
        "AWS_REGION": "us-west-2",
        "INSTALLATION": STACK,
        "INTERRUPTION_QUEUE": "joiner",
        "CONTROLLER_ROLE_ARN": ROLE,
        "IMAGE": "joiner:1",
    }
    for name, value in known.items():
        assert f"${{{name}}}" in text
        text = text.replace(f"${{{name}}}", value)

    assert keyed(yaml.safe_load_all(text)) == created(standard())


FILES = manifests.files()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_rendered_file_equals_the_output_of_the_code(path: Path) -> None:
    assert (CHECKOUT / path).read_text() == FILES[path], "make manifests"


def test_the_chart_of_crds_has_every_crd_as_a_file() -> None:
    """Flux's source-controller drops symbolic links, and installs a chart without them."""
    templates = [*(CHARTS / "joiner-crds/templates").iterdir()]

    assert not any(path.is_symlink() for path in templates)
    assert {path.name: path.read_text() for path in templates} == {
        path.name: path.read_text() for path in (CHECKOUT / "crds").glob("*.yaml")
    }
