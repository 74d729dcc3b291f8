"""User data of an instance, in the format of its AMI family.

The user data of each family combines the cluster's connection data, the labels, the taints and the
kubelet configuration with the user's own `spec.userData`. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any

import yaml

from controller.apis import labels as names
from controller.apis.kubernetes.taints import Taint
from controller.aws.bootstrap import bottlerocket
from controller.aws.bootstrap.families import AL2, AL2023, BOTTLEROCKET, Family
from controller.aws.bootstrap.imagevolumes import mount_script
from controller.aws.bootstrap.nodeconfigs import (
    NODE_CONFIG,
    UserDataError,
    check_node_config,
    is_node_config,
)
from controller.aws.cluster import EksCluster

SHELL_SCRIPT = 'text/x-shellscript; charset="us-ascii"'
CLOUD_CONFIG = 'text/cloud-config; charset="us-ascii"'
CLOUD_CONFIG_LINE = "#cloud-config"
"""The first line of cloud-config without MIME headers."""

BOUNDARY = "//"

UNREGISTERED = Taint(key=names.UNREGISTERED_TAINT, effect="NoExecute")
_KUBERNETES_DOMAINS = ("kubernetes.io", "k8s.io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The inputs of user data.

    `kubelet` is a KubeletConfiguration as a map. `custom` is the user's `spec.userData`. `raid` is
    whether the instance store volumes form one RAID 0 array.
    """

    cluster: EksCluster
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    custom: str = ""
    raid: bool = False
    fast_image_pull: bool = False
    """Whether image layers are downloaded and unpacked in parallel (SOCI); AL2023, Bottlerocket.

    AL2023 ignores it if there is an `image_device`: SOCI does not find the images of the volume.
    """

    image_device: str = ""
    """The device of the volume with container images, such as /dev/xvdb; empty if there is none."""

    image_version: str = ""
    """The AMI's release if it is known, such as `1.52.0`; otherwise empty."""


def allowed_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that a kubelet may set on its own node; registration adds the others."""
    return {
        key: value
        for key, value in sorted(labels.items())
        if not any(
            (domain := key.rpartition("/")[0]) == own or domain.endswith(f".{own}")
            for own in _KUBERNETES_DOMAINS
        )
    }


def registered_taints(*taints: Taint) -> tuple[Taint, ...]:
    """Return the taints, and the taint that keeps pods off the node until it is registered."""
    if any(t.key == UNREGISTERED.key and t.effect == UNREGISTERED.effect for t in taints):
        return taints
    return (*taints, UNREGISTERED)


def user_data(family: Family, bootstrap: Bootstrap) -> str:
    """Return the user data for AMIs of the family.

    Raises:
        UserDataError: the user's `spec.userData` cannot be merged.

    """
    if family is AL2023:
        # The volume is mounted first: the user's scripts may use containerd.
        device = bootstrap.image_device
        mounting = [(SHELL_SCRIPT, mount_script(device))] if device else []
        custom = _custom(bootstrap.custom, nodeadm=True)
        return _mime([*mounting, *custom, (NODE_CONFIG, _node_config(bootstrap))])
    if family is AL2:
        return _mime([*_custom(bootstrap.custom), (SHELL_SCRIPT, _script(bootstrap))])
    if family is BOTTLEROCKET:
        return _bottlerocket(bootstrap)
    if family.is_windows:
        return _powershell(bootstrap)
    return bootstrap.custom


_PLACE = re.compile(r"\(at [^()]*\)$")


# MIME.

MimePart = tuple[str, str]
"""Content type and content of a MIME part."""


def _mime(parts: list[MimePart]) -> str:
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{BOUNDARY}"', ""]
    for content_type, content in parts:
        lines += [f"--{BOUNDARY}", f"Content-Type: {content_type}", "", content.rstrip("\n"), ""]
    # Carriage returns, which editors on Windows add, break shell scripts.
    return "\n".join([*lines, f"--{BOUNDARY}--", ""]).replace("\r", "")


def _is_mime(text: str) -> bool:
    start = text.lstrip().lower()
    return start.startswith(("mime-version:", "content-type:"))


def _parts_of(text: str) -> Iterator[MimePart]:
    message = message_from_bytes(text.lstrip().encode())
    for leaf in message.walk():
        if leaf.is_multipart():
            continue
        payload = leaf.get_payload(decode=True)
        if not isinstance(payload, bytes):
            raise UserDataError(
                "a part of spec.userData is not a MIME part; correct its MIME headers and boundary"
            )
        try:
            content = payload.decode()
        except UnicodeDecodeError:
            # The exception's message would show the content, which may be secret.
            raise UserDataError(
                "a part of spec.userData is not text in UTF-8; encode it as UTF-8"
            ) from None
        yield leaf.get("Content-Type", "text/plain"), content


def _custom(text: str, *, nodeadm: bool = False) -> Iterator[MimePart]:
    """Yield the parts of the user's `spec.userData`; with `nodeadm`, a NodeConfig may be one.

    cloud-init reads text without MIME headers by its first line.

    Raises:
        UserDataError: a part cannot be read, or nodeadm does not accept a NodeConfig.

    """
    if _is_mime(text):
        parts = _parts_of(text)
    elif text.lstrip().startswith(CLOUD_CONFIG_LINE):
        parts = iter([(CLOUD_CONFIG, text.lstrip())])
    elif text.strip():
        parts = iter([(NODE_CONFIG if nodeadm and is_node_config(text) else SHELL_SCRIPT, text)])
    else:
        parts = iter(())
    for content_type, content in parts:
        if nodeadm and content_type.partition(";")[0].strip().lower() == NODE_CONFIG:
            check_node_config(content)
        yield content_type, content


# AL2023.


class _Quoting(yaml.SafeDumper):
    """Writes YAML 1.1 for the Go parser of nodeadm.

    The Go parser reads some texts as numbers or booleans that Python's parser reads as strings,
    such as `y` and `1e9`. This dumper quotes those too.
    """


_Quoting.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
_Quoting.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(0[xXoObB][\da-fA-F_]+|[\d_]*\.?[\d_]*([eE][-+]?[\d_]+)?)$"),
    list("-+.0123456789"),
)


def _node_config(bootstrap: Bootstrap) -> str:
    cluster = bootstrap.cluster
    config: dict[str, Any] = {
        **bootstrap.kubelet,
        "registerWithTaints": [
            {"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})}
            for t in bootstrap.taints
        ],
    }
    kubelet: dict[str, Any] = {"config": config}
    if bootstrap.labels:
        kubelet["flags"] = [f"--node-labels={_pairs(bootstrap.labels)}"]
    spec: dict[str, Any] = {
        "cluster": {
            "name": cluster.name,
            "apiServerEndpoint": cluster.endpoint,
            "certificateAuthority": cluster.ca_bundle,
            "cidr": cluster.service_cidr,
        },
        "kubelet": kubelet,
    }
    if bootstrap.raid:
        storage: dict[str, Any] = {"strategy": "RAID0"}
        if bootstrap.image_device:
            storage["disabledMounts"] = ["Containerd"]
        spec["instance"] = {"localStorage": storage}
    if bootstrap.fast_image_pull and not bootstrap.image_device:
        spec["featureGates"] = {"FastImagePull": True}
    document = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    text: str = yaml.dump(document, Dumper=_Quoting, sort_keys=True, width=10**6)
    return f"# Generated by Joiner\n{text}"


# AL2.


def _script(bootstrap: Bootstrap) -> str:
    cluster = bootstrap.cluster
    arguments = [
        f"'{cluster.name}'",
        f"--apiserver-endpoint '{cluster.endpoint}'",
        f"--b64-cluster-ca '{cluster.ca_bundle}'",
        *(["--ip-family ipv6"] if cluster.ipv6 else []),
        *(f"--dns-cluster-ip '{dns}'" for dns in (bootstrap.kubelet.get("clusterDNS") or [])[:1]),
        "--use-max-pods false",
        f"--kubelet-extra-args '{_kubelet_arguments(bootstrap)}'",
        *(["--local-disks raid0"] if bootstrap.raid else []),
    ]
    return "\n".join(
        [
            "#!/bin/bash -xe",
            "exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1",
            "/etc/eks/bootstrap.sh " + " \\\n".join(arguments),
        ]
    )


def _kubelet_arguments(bootstrap: Bootstrap) -> str:
    kubelet = bootstrap.kubelet
    arguments: list[str] = []
    if bootstrap.labels:
        arguments.append(f'--node-labels="{_pairs(bootstrap.labels)}"')
    if bootstrap.taints:
        arguments.append(f'--register-with-taints="{",".join(map(_taint, bootstrap.taints))}"')
    for key, flag, between in (
        ("maxPods", "max-pods", ""),
        ("podsPerCore", "pods-per-core", ""),
        ("systemReserved", "system-reserved", "="),
        ("kubeReserved", "kube-reserved", "="),
        ("evictionHard", "eviction-hard", "<"),
        ("evictionSoft", "eviction-soft", "<"),
        ("evictionSoftGracePeriod", "eviction-soft-grace-period", "="),
        ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", ""),
        ("imageGCHighThresholdPercent", "image-gc-high-threshold", ""),
        ("imageGCLowThresholdPercent", "image-gc-low-threshold", ""),
        ("cpuCFSQuota", "cpu-cfs-quota", ""),
    ):
        value = kubelet.get(key)
        if isinstance(value, Mapping) and value:
            arguments.append(f'--{flag}="{_pairs(value, between)}"')
        elif value is not None and not isinstance(value, Mapping):
            arguments.append(f"--{flag}={str(value).lower()}")
    return " ".join(arguments)


def _pairs(pairs: Mapping[str, Any], between: str = "=") -> str:
    return ",".join(f"{key}{between}{value}" for key, value in sorted(pairs.items()))


def _taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}"


# Bottlerocket and Windows.


def _bottlerocket(bootstrap: Bootstrap) -> str:
    try:
        return bottlerocket.settings(
            bootstrap.custom,
            cluster=bootstrap.cluster,
            labels=bootstrap.labels,
            taints=bootstrap.taints,
            kubelet=bootstrap.kubelet,
            raid=bootstrap.raid,
            has_images=bool(bootstrap.image_device),
            fast_image_pull=bootstrap.fast_image_pull,
            version=bootstrap.image_version,
        )
    except bottlerocket.ShapeError as exc:
        raise UserDataError(f"spec.userData: {exc}") from exc
    except RecursionError:
        raise UserDataError("spec.userData is nested too deeply") from None
    except ValueError as exc:
        # The parser's message repeats the content, which may be secret.
        where = _PLACE.search(str(exc))
        raise UserDataError(
            "spec.userData is not TOML, which Bottlerocket requires"
            + (f" {where[0]}" if where else "")
        ) from None


def _powershell(bootstrap: Bootstrap) -> str:
    cluster = bootstrap.cluster
    call = [
        "& $EKSBootstrapScriptFile",
        f"-EKSClusterName '{cluster.name}'",
        f"-APIServerEndpoint '{cluster.endpoint}'",
        f"-Base64ClusterCA '{cluster.ca_bundle}'",
        f"-KubeletExtraArgs '{_kubelet_arguments(bootstrap)}'",
        *(f"-DNSClusterIP '{dns}'" for dns in (bootstrap.kubelet.get("clusterDNS") or [])[:1]),
    ]
    path = r"$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"
    script = f'[string]$EKSBootstrapScriptFile = "{path}"'
    custom = [bootstrap.custom.strip("\n")] if bootstrap.custom.strip() else []
    return "\n".join(["<powershell>", *custom, script, " ".join(call), "</powershell>"])
