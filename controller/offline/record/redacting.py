"""Redaction of a world: removes names that identify its owner, and keeps the results the same.

Names, namespaces and label values become tokens. Equal values get the same token, and tokens have
the same order as the values, because the engine breaks ties by name. Values of Kubernetes',
Karpenter's and AWS' own labels (zone, instance type) are kept, and so are label keys, resource
names and numbers that requirements compare.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.apis import labels
from controller.disruption.advice.adoption import COMPUTE
from controller.state.nodes import LIFECYCLES

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""The label that bears a namespace's own name."""

OWN_VALUES = frozenset({labels.NODEPOOL, labels.EC2NODECLASS, labels.HOSTNAME})
"""Keys of well-known domains whose values are names that users choose."""

PUBLIC_KEYS = frozenset({*labels.WELL_KNOWN, *labels.ALIASES, *LIFECYCLES, COMPUTE})
PUBLIC_DOMAINS = (labels.GROUP, labels.AWS_GROUP, "node.kubernetes.io", "karpenter.kwok.sh")
"""Domains of label keys whose values describe an instance type or a node."""

NAMES = frozenset(
    {
        "name",
        "uid",
        "generateName",
        "nodeName",
        "nominatedNodeName",
        "claimName",
        "volumeName",
        "volumeHandle",
        "volumeID",
        "persistentVolumeName",
        "storageClassName",
        "priorityClassName",
        "resourceClaimName",
        "resourceClaimTemplateName",
    }
)
SELECTING = frozenset({"labels", "matchLabels", "nodeSelector", "selector"})
"""Fields that map label keys to values; a selector is such a map or contains one."""

VOLUMES = frozenset({"hostPath", "local"})
"""Volume sources whose content does not affect scheduling."""

TAINTS = frozenset({"taints", "startupTaints", "tolerations"})
COMPARING = frozenset({"Gt", "Lt", "Gte", "Lte"})

PUBLIC = frozenset({"instanceTypes", "settings", "csiDrivers"})
"""Parts of a world that do not identify its owner."""

HARDWARE = frozenset(
    {"resourceSlices", "resourceClaims", "deviceClasses", "deviceTaintRules", "csiNodes"}
)
"""Kinds in which only the object's own name is chosen by a user; the other names are those of
drivers and devices."""


def redact(world: Mapping[str, Any]) -> dict[str, Any]:
    """Return the world with tokens instead of names that users chose, and without events.

    The messages of events contain names.
    """
    world = {key: part for key, part in world.items() if key != "events"}
    collector = _Collector(frozenset(_numeric_labels(world)), dict(_composed_names(world)))
    _redact_world(world, collector)
    return dict(_redact_world(world, collector.tokens()))


@dataclass(slots=True)
class _Words(ABC):
    """Maps names, namespaces and label values to their replacements."""

    compared: frozenset[str]
    composed: Mapping[str, tuple[str, str]]
    """Names of PersistentVolumeClaims that consist of a pod's name and a volume's name."""

    @abstractmethod
    def replacement(self, word: str) -> str:
        """Return the replacement of a name."""

    @abstractmethod
    def namespace(self, word: str) -> str:
        """Return the replacement of a namespace's name."""

    def of_label(self, key: str, value: str) -> str:
        """Return the replacement of a label's value."""
        if key == NAMESPACE_LABEL:
            return self.namespace(value)
        if key in self.compared or (_is_public(key) and key not in OWN_VALUES):
            return value
        return self.replacement(value)


@dataclass(slots=True)
class _Collector(_Words):
    """Collects all names and namespaces, so that tokens can be assigned in sorted order."""

    words: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)

    def replacement(self, word: str) -> str:
        self.words.update(self.composed.get(word, (word,)))
        return word

    def namespace(self, word: str) -> str:
        self.namespaces.add(word)
        return word

    def tokens(self) -> _Tokens:
        """Return the tokens of all collected names and namespaces."""
        return _Tokens(
            self.compared,
            self.composed,
            _number_words("x", sorted(self.words)),
            # Pods sort by `namespace/name`, in which a slash follows the namespace.
            _number_words("n", sorted(self.namespaces, key=lambda namespace: f"{namespace}/")),
        )


@dataclass(slots=True)
class _Tokens(_Words):
    """Replaces names and namespaces with tokens."""

    names: Mapping[str, str]
    spaces: Mapping[str, str]

    def replacement(self, word: str) -> str:
        return "-".join(
            self.names[part] if part else "" for part in self.composed.get(word, (word,))
        )

    def namespace(self, word: str) -> str:
        return self.spaces[word] if word else ""


def _number_words(prefix: str, words: list[str]) -> dict[str, str]:
    width = len(str(len(words)))
    return {word: f"{prefix}{index:0{width}d}" for index, word in enumerate(words)}


def _redact_world(world: Mapping[str, Any], words: _Words) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in world.items():
        if key == "instanceTypes" and isinstance(value, list):
            result[key] = [_type(row, words) for row in value]
        elif key in PUBLIC:
            result[key] = value
        elif key in HARDWARE:
            result[key] = [_hardware(row, words) for row in value]
        elif key == "namespaces":
            result[key] = [_namespace(row, words) for row in value]
        else:
            result[key] = [_object(row, words) for row in value]
    return result


def _namespace(value: dict[str, Any], words: _Words) -> dict[str, Any]:
    name = words.namespace(value["metadata"]["name"])
    result: dict[str, Any] = _object(value, words)
    return {**result, "metadata": {**result["metadata"], "name": name}}


def _type(row: dict[str, Any], words: _Words) -> dict[str, Any]:
    # Labels of the user data are among the requirements.
    result = {**row, "requirements": _object(row.get("requirements", []), words)}
    if pools := row.get("nodePools"):
        result["nodePools"] = [pool and words.replacement(pool) for pool in pools]
    return result


def _hardware(value: dict[str, Any], words: _Words) -> dict[str, Any]:
    result = {**value, "metadata": _object(value.get("metadata", {}), words)}
    spec = value.get("spec")
    if isinstance(spec, dict) and spec.get("nodeName"):
        result["spec"] = {**spec, "nodeName": words.replacement(spec["nodeName"])}
    status = value.get("status")
    if isinstance(status, dict) and "reservedFor" in status:
        result["status"] = {**status, "reservedFor": _object(status["reservedFor"], words)}
    return result


def _object(value: Any, words: _Words, inside: str = "") -> Any:
    if isinstance(value, list):
        return [_object(member, words, inside) for member in value]
    if not isinstance(value, dict):
        return value
    if inside in SELECTING and all(isinstance(text, str) for text in value.values()):
        return {key: words.of_label(key, text) for key, text in value.items()}
    key = value.get("key")
    if isinstance(key, str) and isinstance(value.get("values"), list):
        return {**value, "values": [words.of_label(key, text) for text in value["values"]]}
    if inside in TAINTS and isinstance(value.get("value"), str) and isinstance(key, str):
        return {**value, "value": words.of_label(key, value["value"])}
    return {name: _field(name, part, words) for name, part in value.items() if name != "message"}


def _field(name: str, value: Any, words: _Words) -> Any:
    """Return the redacted value of a field."""
    if isinstance(value, str):
        if name == "namespace":
            return words.namespace(value)
        if name in NAMES:
            return words.replacement(value)
        if name == "providerID":
            return _provider_id(value, words)
        return value
    if name == "namespaces":
        return [words.namespace(namespace) for namespace in value]
    if name == "annotations":
        selected = value.get(labels.SELECTED_NODE)
        return {**value, labels.SELECTED_NODE: words.replacement(selected)} if selected else value
    if name in VOLUMES:
        return dict.fromkeys(value, "")
    return _object(value, words, name)


def _provider_id(value: str, words: _Words) -> str:
    prefix, slash, instance = value.rpartition("/")
    return f"{prefix}{slash}{words.replacement(instance)}" if instance else value


def _is_public(key: str) -> bool:
    return key in PUBLIC_KEYS or key.partition("/")[0] in PUBLIC_DOMAINS


def _composed_names(world: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the names of the claims for ephemeral volumes, each with the parts of the name."""
    for pod in world.get("pods", ()):
        for volume in pod.get("spec", {}).get("volumes", ()):
            if "ephemeral" in volume:
                parts = pod["metadata"]["name"], volume["name"]
                yield "-".join(parts), parts


def _numeric_labels(value: Any) -> Iterator[str]:
    """Yield the keys of labels whose values are compared as numbers."""
    if isinstance(value, list):
        for member in value:
            yield from _numeric_labels(member)
    elif isinstance(value, dict):
        if value.get("operator") in COMPARING and isinstance(value.get("key"), str):
            yield value["key"]
        for member in value.values():
            yield from _numeric_labels(member)
