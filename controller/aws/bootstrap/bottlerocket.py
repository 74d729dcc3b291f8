"""Bottlerocket settings in TOML: the user's settings, overridden by those of the controller."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controller.apis.kubernetes.taints import Taint
from controller.aws.cluster import EksCluster

TomlTable = dict[str, Any]

RAID_COMMAND = "000-mount-instance-storage"
CONTAINERD_DIRECTORY = "/var/lib/containerd"
POD_DIRECTORIES = ("/var/lib/kubelet", "/var/log/pods")
DEFAULT_DIRECTORIES_SINCE = (1, 46, 0)
"""The first release whose default directories for instance storage are correct."""

SOCI_SINCE = (1, 44, 0)
"""The first release with the SOCI snapshotter."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ShapeError(ValueError):
    """The user's settings have a value in place of a Bottlerocket table; the message says where."""


def settings(
    custom: str,
    *,
    cluster: EksCluster,
    labels: Mapping[str, str],
    taints: Iterable[Taint],
    kubelet: Mapping[str, Any],
    raid: bool,
    has_images: bool,
    fast_image_pull: bool,
    version: str,
) -> str:
    """Return the user's settings, overridden by those of the controller, as TOML.

    `custom` are the user's settings in TOML. `version` is the AMI's release, such as `1.52.0`;
    empty if unknown. `raid` and `fast_image_pull` are those of `userdata.Bootstrap`. `has_images`
    is whether the data volume has container images, so that containerd must stay there.

    Raises:
        ShapeError: the user's settings have another value where Bottlerocket has a table.
        ValueError: the user's settings are not valid TOML.

    """
    document: TomlTable = tomllib.loads(custom)
    kubernetes = _table(document, "settings.kubernetes")
    kubernetes |= {
        "cluster-name": cluster.name,
        "api-server": cluster.endpoint,
        "cluster-certificate": cluster.ca_bundle,
        "node-labels": {**_table(document, "settings.kubernetes.node-labels"), **labels},
        "node-taints": _taints(taints),
        **dict(_kubelet(kubelet)),
    }
    if raid:
        _table(document, "settings.bootstrap-commands")[RAID_COMMAND] = _raid(
            version, has_images=has_images
        )
    # A Bottlerocket release does not start if it does not support a setting.
    if fast_image_pull and _is_since(SOCI_SINCE, version):
        _table(document, "settings.container-runtime")["snapshotter"] = "soci"
        soci = _table(document, "settings.container-runtime-plugins.soci-snapshotter")
        soci["pull-mode"] = "parallel-pull-unpack"
    return to_toml(document)


def _table(document: TomlTable, path: str) -> TomlTable:
    """Return the table at a dotted path; create it if it does not exist."""
    table = document
    for key in path.split("."):
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ShapeError(f"{key} of {path} is not a TOML table")
        table = inner
    return table


def _taints(taints: Iterable[Taint]) -> TomlTable:
    by_key: TomlTable = {}
    for taint in taints:
        by_key.setdefault(taint.key, []).append(f"{taint.value}:{taint.effect}")
    return by_key


def _kubelet(kubelet: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    dns = kubelet.get("clusterDNS")
    if dns:
        yield "cluster-dns-ip", dns[0]
    for ours, theirs in (
        ("maxPods", "max-pods"),
        ("cpuCFSQuota", "cpu-cfs-quota"),
        ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period"),
    ):
        if kubelet.get(ours) is not None:
            yield theirs, kubelet[ours]
    for ours, theirs in (
        ("imageGCHighThresholdPercent", "image-gc-high-threshold-percent"),
        ("imageGCLowThresholdPercent", "image-gc-low-threshold-percent"),
    ):
        if kubelet.get(ours) is not None:
            yield theirs, str(kubelet[ours])
    for ours, theirs in (
        ("systemReserved", "system-reserved"),
        ("kubeReserved", "kube-reserved"),
        ("evictionHard", "eviction-hard"),
        ("evictionSoft", "eviction-soft"),
        ("evictionSoftGracePeriod", "eviction-soft-grace-period"),
    ):
        if kubelet.get(ours):
            yield theirs, {key: str(value) for key, value in kubelet[ours].items()}


def _is_since(release: tuple[int, int, int], version: str) -> bool:
    """Whether a version is known, and not older than the release."""
    found = _VERSION.search(version)
    return found is not None and tuple(map(int, found.groups())) >= release


def _raid(version: str, *, has_images: bool) -> TomlTable:
    bind = ["apiclient", "ephemeral-storage", "bind"]
    if has_images:
        bind += ["--dirs", *POD_DIRECTORIES]
    elif not _is_since(DEFAULT_DIRECTORIES_SINCE, version):
        bind += ["--dirs", CONTAINERD_DIRECTORY, *POD_DIRECTORIES]
    return {
        "commands": [["apiclient", "ephemeral-storage", "init"], bind],
        "essential": True,
        "mode": "always",
    }


def to_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML: scalars first, then a section per table, keys sorted.

    Each value takes one line: EC2 limits user data to 16 KiB.
    """
    return "\n".join(_section((), document)) + "\n"


def _section(path: Sequence[str], table: Mapping[str, Any]) -> Iterator[str]:
    scalars = {k: v for k, v in table.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in table.items() if isinstance(v, dict)}
    if path and (scalars or not tables):
        yield f"[{'.'.join(map(_key, path))}]"
    for key in sorted(scalars):
        yield f"{_key(key)} = {_value(scalars[key])}"
    for key in sorted(tables):
        yield from _section((*path, key), tables[key])


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # TOML's basic strings use JSON's escapes, but also require DEL to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in sorted(value.items()))}}}"
    return str(value)
