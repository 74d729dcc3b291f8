"""Golden files of user data: `UPDATE_GOLDEN=1 pytest tests/aws/test_userdata.py` rewrites them."""

from __future__ import annotations

import base64
import gzip
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from controller.apis.kubernetes.taints import Taint
from controller.aws.bootstrap import bottlerocket
from controller.aws.bootstrap.families import FAMILIES
from controller.aws.bootstrap.nodeconfigs import UserDataError
from controller.aws.bootstrap.userdata import (
    Bootstrap,
    allowed_labels,
    registered_taints,
    user_data,
)
from controller.aws.cluster import EksCluster
from testbed.nodes.userdata import parse_user_data

GOLDEN = Path(__file__).parent / "golden"

IPV4 = EksCluster(
    name="joiner",
    endpoint="https://0123456789abcdef.gr7.us-west-2.eks.amazonaws.com",
    ca_bundle="Y2VydGlmaWNhdGU=",
    version="1.37",
    service_cidr="10.100.0.0/16",
    dns="10.100.0.10",
)
IPV6 = EksCluster(
    name="joiner",
    endpoint="https://[fd00::1]",
    ca_bundle="Y2VydGlmaWNhdGU=",
    version="1.37",
    service_cidr="fd30:1c53:5f8a::/108",
    ipv6=True,
    dns="fd30:1c53:5f8a::a",
)
KUBELET = {
    "maxPods": 58,
    "clusterDNS": ["10.100.0.10"],
    "kubeReserved": {"cpu": "100m", "memory": "500Mi"},
    "systemReserved": {"memory": "200Mi"},
    "evictionHard": {"memory.available": "5%"},
    "evictionSoft": {"memory.available": "10%"},
    "evictionSoftGracePeriod": {"memory.available": "1m"},
    "evictionMaxPodGracePeriod": 60,
    "imageGCHighThresholdPercent": 80,
    "imageGCLowThresholdPercent": 60,
    "cpuCFSQuota": False,
}
MIME = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="mine"

--mine
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/bash
echo first
--mine
Content-Type: text/cloud-config

packages: [htop]
--mine--
"""
NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  kubelet:
    config:
      maxPods: 7
"""
TOML = """\
[settings.kernel]
lockdown = "integrity"

[settings.kubernetes]
cluster-name = "not-this-one"
node-labels = { "mine" = "1" }

[settings.kubernetes.node-taints]
"mine" = ["1:NoSchedule"]
"""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "al2023": ("AL2023", {}),
    "al2023-shell": ("AL2023", {"custom": "#!/bin/bash\necho hello\n"}),
    "al2023-nodeconfig": ("AL2023", {"custom": NODE_CONFIG}),
    "al2023-mime": ("AL2023", {"custom": MIME}),
    "al2023-raid0": ("AL2023", {"raid": True}),
    "al2023-fast-image-pull": ("AL2023", {"fast_image_pull": True}),
    "al2023-image-snapshot": (
        "AL2023",
        {"image_device": "/dev/xvdp", "raid": True, "fast_image_pull": True, "custom": MIME},
    ),
    "al2023-kubelet": ("AL2023", {"kubelet": KUBELET}),
    "al2023-ipv6": ("AL2023", {"cluster": IPV6}),
    "al2": ("AL2", {}),
    "al2-mime": ("AL2", {"custom": MIME}),
    "al2-kubelet": ("AL2", {"kubelet": KUBELET, "raid": True}),
    "al2-ipv6": ("AL2", {"cluster": IPV6, "kubelet": {"clusterDNS": [IPV6.dns], "maxPods": 110}}),
    "bottlerocket": ("Bottlerocket", {"custom": TOML}),
    "bottlerocket-kubelet": ("Bottlerocket", {"kubelet": KUBELET}),
    "bottlerocket-raid0": ("Bottlerocket", {"raid": True, "image_version": "1.44.0"}),
    "bottlerocket-fast-image-pull": (
        "Bottlerocket",
        {"fast_image_pull": True, "image_version": "bottlerocket-aws-k8s-1.36-x86_64-v1.52.0-7b9"},
    ),
    "bottlerocket-image-snapshot": ("Bottlerocket", {"image_device": "/dev/xvdb", "raid": True}),
    "windows2022": ("Windows2022", {"custom": 'Write-Host "hello"\n'}),
    "windows2019": ("Windows2019", {}),
    "windows2025": ("Windows2025", {"kubelet": KUBELET}),
    "custom": ("Custom", {"custom": "#!/bin/bash\n/opt/join\n"}),
}


def bootstrap(**given: Any) -> Bootstrap:
    settings: dict[str, Any] = {
        "cluster": IPV4,
        "labels": {"karpenter.sh/nodepool": "default", "team": "a"},
        "taints": registered_taints(Taint(key="team", value="a", effect="NoSchedule")),
        "kubelet": {"maxPods": 29, "clusterDNS": ["10.100.0.10"]},
        **given,
    }
    return Bootstrap(**settings)


@pytest.mark.parametrize("name", CASES)
def test_user_data_has_the_format_of_the_ami_family(name: str) -> None:
    family, given = CASES[name]
    text = user_data(FAMILIES[family], bootstrap(**given))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("custom", "windows"))])
def test_the_node_parses_its_user_data(name: str) -> None:
    family, given = CASES[name]
    understood = parse_user_data(user_data(FAMILIES[family], bootstrap(**given)))
    assert understood.cluster_name == "joiner"
    assert understood.labels.items() >= {"karpenter.sh/nodepool": "default", "team": "a"}.items()
    assert {(t["key"], t["effect"]) for t in understood.taints} == {
        ("team", "NoSchedule"),
        ("karpenter.sh/unregistered", "NoExecute"),
    }
    wanted = given.get("kubelet", {"maxPods": 29})["maxPods"]
    assert understood.max_pods == wanted


def test_our_settings_win_over_the_users_in_bottlerocket() -> None:
    merged = tomllib.loads(user_data(FAMILIES["Bottlerocket"], bootstrap(custom=TOML)))
    assert merged["settings"]["kernel"] == {"lockdown": "integrity"}
    kubernetes = merged["settings"]["kubernetes"]
    assert kubernetes["cluster-name"] == "joiner"
    assert kubernetes["node-labels"]["mine"] == "1"
    assert "mine" not in kubernetes["node-taints"]


def test_containerd_stays_on_the_volume_with_images() -> None:
    plain = bootstrap(image_device="/dev/xvdb")
    assert user_data(FAMILIES["Bottlerocket"], plain) == user_data(
        FAMILIES["Bottlerocket"], bootstrap()
    )
    version = "1.52.0"  # binds the directory of containerd by default
    local = bootstrap(image_device="/dev/xvdb", raid=True, image_version=version)
    text = user_data(FAMILIES["Bottlerocket"], local)
    assert "/var/lib/kubelet" in text
    assert "/var/lib/containerd" not in text


@pytest.mark.parametrize("family", ["AL2", "Windows2022", "Custom"])
def test_other_families_have_no_volume_with_images(family: str) -> None:
    with_images = bootstrap(image_device="/dev/xvdp")
    assert user_data(FAMILIES[family], with_images) == user_data(FAMILIES[family], bootstrap())


def test_invalid_toml_is_refused_with_a_message() -> None:
    with pytest.raises(UserDataError, match="not TOML"):
        user_data(FAMILIES["Bottlerocket"], bootstrap(custom="echo hello\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("settings = 5", "settings of settings.kubernetes is not a TOML table"),
        ("[settings]\nkubernetes = 5", "kubernetes of settings.kubernetes is not a TOML table"),
        ("[settings.kubernetes]\nnode-labels = 5", "node-labels of .* is not a TOML table"),
        ("[settings]\nbootstrap-commands = 5", "bootstrap-commands of .* is not a TOML table"),
        ("a = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_settings_of_the_wrong_shape_are_refused_with_a_message(text: str, says: str) -> None:
    with pytest.raises(UserDataError, match=says):
        user_data(FAMILIES["Bottlerocket"], bootstrap(custom=text, raid=True))


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_a_mime_part_in_any_encoding_is_kept_and_a_binary_one_is_refused(
    family: str,
) -> None:
    output = user_data(FAMILIES[family], bootstrap(custom=MIME.replace("first", "für alle")))
    assert "\necho für alle\n" in output

    packed = base64.b64encode(gzip.compress(b"#!/bin/bash")).decode()
    binary = f"Content-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n{packed}"
    with pytest.raises(UserDataError, match="not text in UTF-8"):
        user_data(FAMILIES[family], bootstrap(custom=binary))


@pytest.mark.parametrize(
    "text",
    ["y", "N", "on", "true", "null", "7", "1e9", "5E2", "+1e3", ".5e3", "0o17", "0XF", "1e_3"],
)
def test_values_that_yaml_may_not_read_as_text_are_quoted(text: str) -> None:
    taints = (Taint(key="dedicated", value=text, effect="NoSchedule"),)
    kubelet = {"maxPods": 29, "kubeReserved": {"memory": text}, "cpuCFSQuota": False}

    output = user_data(FAMILIES["AL2023"], bootstrap(taints=taints, kubelet=kubelet))

    assert f"value: '{text}'" in output
    assert f"memory: '{text}'" in output
    assert "maxPods: 29" in output
    assert "cpuCFSQuota: false" in output


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_cloud_config_without_mime_headers_is_passed_to_cloud_init(family: str) -> None:
    text = "#cloud-config\nruncmd:\n  - echo hello\n"
    output = user_data(FAMILIES[family], bootstrap(custom=f"\n{text}"))
    assert f'Content-Type: text/cloud-config; charset="us-ascii"\n\n{text}' in output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("maxPods: 7", "not a NodeConfig: it needs apiVersion: node.eks.aws/v1alpha1"),
        ("apiVersion: v1\nkind: NodeConfig", "not a NodeConfig"),
        ("apiVersion: node.eks.aws/v1alpha1\nspec: {}", "and kind: NodeConfig"),
        (f"{NODE_CONFIG}   maxPods: : 8", r"not valid YAML \(line 7, column \d+\)"),
        (f"{NODE_CONFIG}\tmaxPods: 8", "not valid YAML"),
        (f"{NODE_CONFIG}---\n{NODE_CONFIG}", "2 YAML documents in one NodeConfig part"),
        (
            NODE_CONFIG.replace("config:\n      maxPods: 7", "flags: --v=2"),
            "flags .* list of texts",
        ),
        (NODE_CONFIG.replace("config:\n      maxPods: 7", "flags: [{a: b}]"), "list of texts"),
        (NODE_CONFIG.replace("\n      maxPods: 7", " [maxPods]"), "kubelet.config .* not a map"),
        ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: []", "spec .* is not a map"),
    ],
)
@pytest.mark.parametrize("form", ["bare", "MIME"])
def test_a_broken_nodeconfig_is_refused(text: str, says: str, form: str) -> None:
    if form == "MIME":
        text = MIME.replace("text/cloud-config", "application/node.eks.aws").replace(
            "packages: [htop]", text
        )
    with pytest.raises(UserDataError, match=says):
        user_data(FAMILIES["AL2023"], bootstrap(custom=text))


def test_a_script_that_reads_like_yaml_is_a_script() -> None:
    text = "#!/bin/bash\n# kind: NodeConfig\n"
    output = user_data(FAMILIES["AL2023"], bootstrap(custom=text))
    assert f'text/x-shellscript; charset="us-ascii"\n\n{text}' in output


@pytest.mark.parametrize("text", ["on: 2001-13-45", "[" * 1000])
def test_user_data_that_is_not_yaml_is_a_script(text: str) -> None:
    output = user_data(FAMILIES["AL2023"], bootstrap(custom=text))
    assert f'Content-Type: text/x-shellscript; charset="us-ascii"\n\n{text}\n' in output


def test_written_toml_parses_to_the_same_value() -> None:
    document = {
        "plain": 'text with "quotes" and \\ and \n a line',
        "number": 3,
        "share": 0.5,
        "truth": True,
        "list": ["a", ["b", "c"]],
        "table": {"dotted.key": {"deep": 1}, "empty": {}},
        "delete \x7f": "what JSON leaves as it is: \x7f",
        "line\n": True,
    }
    assert tomllib.loads(bottlerocket.to_toml(document)) == document


def test_only_older_bottlerocket_versions_get_the_directories_to_bind() -> None:
    old = user_data(FAMILIES["Bottlerocket"], bootstrap(raid=True, image_version=""))
    new = user_data(FAMILIES["Bottlerocket"], bootstrap(raid=True, image_version="v1.46.0-abc"))
    assert "--dirs" in old
    assert "--dirs" not in new


@pytest.mark.parametrize("version", ["", "v1.43.2"])
def test_a_bottlerocket_version_that_may_lack_soci_does_not_get_its_settings(version: str) -> None:
    # With settings that it does not know, the instance would not join.
    text = user_data(
        FAMILIES["Bottlerocket"], bootstrap(fast_image_pull=True, image_version=version)
    )
    assert "soci" not in text


def test_labels_a_kubelet_may_not_set_are_left_to_registration() -> None:
    given = {
        "team": "a",
        "topology.kubernetes.io/zone": "us-west-2a",
        "node-restriction.kubernetes.io/secure": "true",
        "my.k8s.io/x": "1",
        "karpenter.sh/nodepool": "default",
    }
    assert allowed_labels(given) == {"karpenter.sh/nodepool": "default", "team": "a"}


def test_the_unregistered_taint_is_added_once() -> None:
    once = registered_taints()
    assert registered_taints(*once) == once
