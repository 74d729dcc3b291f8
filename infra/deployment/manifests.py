"""Renders manifests/ and charts/: the controller's objects for Helm, Argo CD, Flux and kubectl.

    python -m infra.deployment.manifests

Both come from `infra.deployment.controller.objects`, from which the Pulumi component creates its
resources. IAM, the interruption queue and the nodes' access to the cluster are not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import yaml

from controller.options import SETTINGS, FeatureGates, Options, text_of
from infra.config.checks import SPOT_TO_SPOT, require_options
from infra.config.forms import Wire
from infra.config.settings import StackConfig
from infra.deployment.controller import (
    ALWAYS,
    ObjectsArgs,
    Rule,
    cluster_rules,
    environment,
    objects,
)
from infra.release import CHECKOUT, version

HEAD = """\
# Rendered by `make manifests` from infra/deployment/{controller,manifests}.py.
"""

DEFAULTS = StackConfig(cluster_name="", region="")

PLACEHOLDERS = {
    "CLUSTER_NAME": "${CLUSTER_NAME}",
    "INSTALLATION": "${INSTALLATION}",
    "INTERRUPTION_QUEUE": "${INTERRUPTION_QUEUE}",
    "AWS_REGION": "${AWS_REGION}",
}
"""What differs between clusters in manifests/, as Flux and envsubst write it."""

CHART_YAML = """\
apiVersion: v2
name: {name}
description: {description}
type: application
version: {version}
appVersion: "{version}"
"""

VALUES = f"""\
# Required: outputs of the Pulumi program that creates IAM and the queue.
clusterName: ""
region: ""
installation: ""
interruptionQueue: ""
controllerRoleArn: ""
image: ""

identity: pod-identity  # or irsa
name: {DEFAULTS.name}
replicas: {DEFAULTS.replicas}
cpu: "{DEFAULTS.cpu}"
memory: {DEFAULTS.memory}
# Settings of the controller by environment variable, such as BATCH_IDLE_DURATION: 2s. The feature
# gate {SPOT_TO_SPOT} is on, unless FEATURE_GATES names it.
settings: {{}}
# More environment variables of the container, such as HTTPS_PROXY.
env: {{}}
metricsDiscovery: {DEFAULTS.metrics_discovery}  # or annotations, or service-monitor
extraLabels: {{}}
podAnnotations: {{}}
nodeSelector: {{}}
tolerations: []
imagePullSecrets: []
dnsPolicy: {DEFAULTS.dns_policy}
"""

MARK = "HELM"
"""Key of an entry in whose place the chart writes what the user gives."""


def plain() -> str:
    """Return manifests/joiner.yaml: the controller's objects, in the namespace kube-system.

    What differs between clusters is a placeholder, such as `${CLUSTER_NAME}`.
    """
    args = _defaults(
        namespace=DEFAULTS.namespace,
        name=DEFAULTS.name,
        image="${IMAGE}",
        role_arn="${CONTROLLER_ROLE_ARN}",
        options=replace(require_options({}), cluster_name=""),
        environment={
            **PLACEHOLDERS,
            "SYSTEM_NAMESPACE": DEFAULTS.namespace,
            "KARPENTER_SERVICE": DEFAULTS.name,
        },
    )
    return HEAD + "---\n".join(_yaml(wire) for _, wire in objects(args))


def _defaults(**given: Any) -> ObjectsArgs:
    standard = {
        "replicas": DEFAULTS.replicas,
        "cpu": DEFAULTS.cpu,
        "memory": DEFAULTS.memory,
        "options": Options(cluster_name=""),
        "identity": DEFAULTS.identity,
    }
    return ObjectsArgs(**cast("dict[str, Any]", standard | given))


def chart() -> dict[str, str]:
    """Return the files of the chart `joiner`, by their paths in it."""
    about = "The controller of Joiner, a node autoscaler for Amazon EKS"
    return {
        "Chart.yaml": HEAD + CHART_YAML.format(name="joiner", description=about, version=version()),
        "values.yaml": HEAD + VALUES,
        "templates/controller.yaml": HEAD + template(),
    }


def crds_chart() -> dict[str, str]:
    """Return the files of the chart `joiner-crds`, by their paths in it.

    Its templates are copies of the files in crds/. Flux, ZIP archives and Git on Windows drop
    symbolic links.
    """
    about = "The CustomResourceDefinitions of Joiner"
    text = CHART_YAML.format(name="joiner-crds", description=about, version=version())
    definitions = (CHECKOUT / "crds").glob("*.yaml")
    copies = {f"templates/{path.name}": path.read_text() for path in sorted(definitions)}
    return {"Chart.yaml": HEAD + text, **copies}


def template() -> str:
    """Return the chart's template.

    The objects are rendered once, with expressions of the template in place of values. An entry
    with the key `MARK` is replaced by what the user gives. A part that exists only with some value
    is enclosed in a condition. Such parts are found by rendering the objects with and without that
    value.
    """
    args = _in_template()
    always = [wire for _, wire in objects(args)]
    monitored = [wire for _, wire in objects(replace(args, metrics_discovery="service-monitor"))]
    parts = [_object(args, wire) for wire in always]
    condition = '{{- if eq .Values.metricsDiscovery "service-monitor" }}'
    optional = [
        f"{condition}\n---\n{_expand(_yaml(wire))}{{{{- end }}}}\n"
        for wire in monitored
        if wire not in always
    ]
    return "".join(["---\n".join(parts), *optional])


def _in_template() -> ObjectsArgs:
    """Return arguments whose values are expressions of the template."""
    options: dict[str, Any] = {
        "metrics_port": "{{ int (.Values.settings.METRICS_PORT | default "
        f"{Options(cluster_name='').metrics_port}) }}}}",
        "health_probe_port": "{{ int (.Values.settings.HEALTH_PROBE_PORT | default "
        f"{Options(cluster_name='').health_probe_port}) }}}}",
        "leader_election_name": "{{ .Values.settings.LEADER_ELECTION_NAME | default "
        f'"{Options(cluster_name="").leader_election_name}" }}}}',
        "leader_election_namespace": "{{ .Values.settings.LEADER_ELECTION_NAMESPACE | default "
        ".Release.Namespace }}",
    }
    return _defaults(
        namespace="{{ .Release.Namespace }}",
        name="{{ .Values.name }}",
        image=_required_value("image"),
        replicas="{{ int .Values.replicas }}",
        cpu="{{ .Values.cpu }}",
        memory="{{ .Values.memory }}",
        options=replace(Options(cluster_name=""), **options),
        environment={},
        identity="{{ .Values.identity }}",
        role_arn=_required_value("controllerRoleArn"),
        extra_labels={MARK: "extraLabels"},
        pod_annotations={MARK: "podAnnotations"},
        node_selector={MARK: "nodeSelector"},
        tolerations=({MARK: "tolerations"},),
        image_pull_secrets=(f"{MARK}-imagePullSecrets",),
        dns_policy="{{ .Values.dnsPolicy }}",
    )


def _required_value(value: str) -> str:
    return f'{{{{ required "{value} is required" .Values.{value} }}}}'


def _object(args: ObjectsArgs, wire: Wire) -> str:
    """Return one object of the template, with its conditions."""
    kind = wire["kind"]
    if kind == "ServiceAccount":
        return _service_account(args, wire)
    if kind == "ClusterRole" and "aggregate-to-admin" not in str(wire["metadata"]["labels"]):
        return _expand(_yaml({**wire, "rules": []})).replace("rules: []\n", _rules())
    text = _expand(_yaml(wire))
    if kind == "Deployment":
        text = re.sub(r"^( *)env:\n(?:\1 *- .*\n|\1  .*\n)+", _environment, text, flags=re.M)
        text = text.replace("{{- with .Values.podAnnotations }}", _scrape(args), 1)
    return text


def _service_account(args: ObjectsArgs, wire: Wire) -> str:
    ((_, with_role), *_) = objects(replace(args, identity="irsa"))
    marks = {"annotations": with_role["metadata"]["annotations"]}
    lines = "".join(f"  {line}\n" for line in _yaml(marks).splitlines())
    return (
        _expand(_yaml(wire)) + f'{{{{- if eq .Values.identity "irsa" }}}}\n{lines}{{{{- end }}}}\n'
    )


def _rules() -> str:
    """Return the rules of the controller's ClusterRole, with a condition for each switch."""
    standard = Options(cluster_name="")
    usual = cluster_rules(standard)
    parts: list[str] = ["rules:\n"]
    dependent: list[Rule] = []
    for condition, options in _switches(standard):
        now = cluster_rules(options)
        added = [rule for rule in now if rule not in usual]
        removed = [rule for rule in usual if rule not in now]
        dependent += removed
        if added or removed:
            instead = f"{{{{- else }}}}\n{_yaml(removed)}" if removed else ""
            parts.append(f"{{{{- if {condition} }}}}\n{_yaml(added)}{instead}{{{{- end }}}}\n")
    parts.insert(1, _yaml([rule for rule in usual if rule not in dependent]))
    return "".join(parts)


def _switches(standard: Options) -> Iterator[tuple[str, Options]]:
    """Yield each switch of the settings: when the chart's values turn it, and the settings then."""
    for setting in SETTINGS:
        value = f".Values.settings.{setting.variable}"
        if isinstance(setting.default, bool):
            condition = f'eq (toString {value}) "{text_of(not setting.default)}"'
            yield condition, _with(standard, setting.name, not setting.default)
        elif isinstance(setting.default, FeatureGates):
            for gate in fields(FeatureGates):
                gates = replace(setting.default, **{gate.name: not gate.default})
                condition = f'contains "{text_of(gates)}" (toString {value})'
                yield condition, _with(standard, setting.name, gates)


def _with(options: Options, name: str, value: Any) -> Options:
    changed: dict[str, Any] = {name: value}
    return replace(options, **changed)


def _environment(found: re.Match[str]) -> str:
    """Return the template of the container's environment, in place of a rendered one."""
    indent = found[1]
    required = {
        "CLUSTER_NAME": "clusterName",
        "AWS_REGION": "region",
        "INSTALLATION": "installation",
        "INTERRUPTION_QUEUE": "interruptionQueue",
    }
    derived = {
        **{
            name: f'(required "{value} is required" .Values.{value})'
            for name, value in required.items()
        },
        "SYSTEM_NAMESPACE": ".Release.Namespace",
        "KARPENTER_SERVICE": ".Values.name",
    }
    always = " ".join(f'"{name}"' for name in ALWAYS)
    pairs = " ".join(f'"{name}" {expression}' for name, expression in sorted(derived.items()))
    lines = [
        "env:",
        f"{{{{- $env := merge (dict {pairs}) .Values.env .Values.settings }}}}",
        '{{- $gates := toString (get $env "FEATURE_GATES" | default "") }}',
        f'{{{{- if not (contains "{SPOT_TO_SPOT}=" $gates) }}}}',
        f'{{{{- $gates = trimSuffix "," (printf "{SPOT_TO_SPOT}=true,%s" $gates) }}}}',
        '{{- $_ := set $env "FEATURE_GATES" $gates }}',
        "{{- end }}",
        f"{{{{- range list {always} }}}}",
        "- name: {{ . }}",
        "  value: {{ get $env . | quote }}",
        "{{- end }}",
    ]
    for entry in environment(Options(cluster_name=""), {}):
        if "valueFrom" in entry:
            lines.append(f'{{{{- if not (hasKey $env "{entry["name"]}") }}}}')
            lines += [*_yaml([entry]).splitlines(), "{{- end }}"]
    lines += [
        f"{{{{- range $name, $value := omit $env {always} }}}}",
        "- name: {{ $name }}",
        "  value: {{ $value | quote }}",
        "{{- end }}",
    ]
    return "".join(
        line if line.startswith("{{-") else f"{indent}{line}" for line in _with_newlines(lines)
    )


def _with_newlines(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"{line}\n" for line in lines)


def _scrape(args: ObjectsArgs) -> str:
    """Return the annotations by which Prometheus finds the pods, before those of the user."""
    deployments = [
        wire
        for discovery in ("none", "annotations")
        for _, wire in objects(replace(args, metrics_discovery=cast("Any", discovery)))
        if wire["kind"] == "Deployment"
    ]
    usual, scraped = (one["spec"]["template"]["metadata"]["annotations"] for one in deployments)
    added = {key: value for key, value in scraped.items() if key not in usual}
    # The port is a text here, as annotations are.
    lines = "".join(f"        {line}\n" for line in _yaml(added).splitlines())
    lines = lines.replace("{{ int ", "{{ toString (int ").replace(") }}", ")) }}")
    condition = '{{- if eq .Values.metricsDiscovery "annotations" }}'
    return f"{condition}\n{lines}{{{{- end }}}}\n{{{{- with .Values.podAnnotations }}}}"


def _expand(text: str) -> str:
    """Replace each marked entry by what the user gives, and unquote numbers."""
    text = re.sub(r"'(\{\{ int .*? \}\})'", r"\1", text)
    text = re.sub(rf"^( *)(?:- )?{MARK}: (\w+)\n", _value_block, text, flags=re.M)
    pulls = rf"^( *)imagePullSecrets:\n *- name: {MARK}-imagePullSecrets\n"
    listed = (
        "{{- with .Values.imagePullSecrets }}\n\\1imagePullSecrets:\n{{- range . }}\n"
        "\\1- name: {{ . }}\n{{- end }}\n{{- end }}\n"
    )
    return re.sub(pulls, listed, text, flags=re.M)


def _value_block(found: re.Match[str]) -> str:
    indent, value = len(found[1]), found[2]
    return (
        f"{{{{- with .Values.{value} }}}}\n{{{{ toYaml . | indent {indent} }}}}\n{{{{- end }}}}\n"
    )


class _Plain(yaml.SafeDumper):
    """Writes shared values in full, because many readers do not support YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, width=10_000) if value else ""


def files() -> dict[Path, str]:
    """Return every rendered file, by its path in the checkout."""
    return {
        Path("manifests/joiner.yaml"): plain(),
        **{Path("charts/joiner") / path: text for path, text in chart().items()},
        **{Path("charts/joiner-crds") / path: text for path, text in crds_chart().items()},
    }


if __name__ == "__main__":
    for _path, _text in files().items():
        _file = CHECKOUT / _path
        _file.parent.mkdir(parents=True, exist_ok=True)
        _file.write_text(_text)
