"""The controller's objects in the cluster: service account, RBAC, Deployment, Service."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from controller.apis import labels
from controller.options import Options, to_environment
from infra.cluster.ekscluster import EksCluster
from infra.config.forms import DnsPolicy, Identity, MetricsDiscovery, Wire
from infra.deployment.changedsettings import changed_settings
from infra.deployment.customresources import definitions
from infra.identity.podidentity import PodIdentity
from infra.inputs import then
from infra.lifecycle.fieldmanager import applied_by_us
from infra.state import recorded_properties

CONTAINER = "controller"
COMMAND = ("python", "-m", "controller", "run")
USER = 65532
"""User ID without privileges; the same as in Karpenter's image."""

ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"
"""Service account annotation: the ARN of the role that its pods assume by IRSA."""

IDENTITY_ANNOTATION = "joiner.dev/identity"
"""Pod annotation: the controller's identity. A change of identity changes the pod template, and so
replaces the pods. EKS injects credentials into a pod only when the pod is created."""

ALWAYS = (
    "AWS_REGION",
    "CLUSTER_NAME",
    "FEATURE_GATES",
    "INSTALLATION",
    "INTERRUPTION_QUEUE",
    "KARPENTER_SERVICE",
    "SYSTEM_NAMESPACE",
)
"""Environment variables that every installation sets."""

CRITICAL = {"key": "CriticalAddonsOnly", "operator": "Exists"}
"""Toleration of the taint of nodes for what a cluster cannot do without."""

Rule = dict[str, Any]


def rule(groups: str, resources: Sequence[str], verbs: Sequence[str], **more: Any) -> Rule:
    """Return the RBAC rule that allows verbs on resources of one API group.

    `groups` is the name of the group. `more` are further fields, such as `resourceNames`.
    """
    return {"apiGroups": [groups], "resources": list(resources), "verbs": list(verbs), **more}


FOLLOW = ("list", "watch")
READ = ("get", *FOLLOW)


def cluster_rules(options: Options) -> list[Rule]:
    """Return the controller's cluster-wide rules: only what its settings require."""
    gates = options.feature_gates
    return [
        *_our_kinds(),
        *_nodes_and_pods(),
        *_workloads(),
        *(
            _overlays()
            if gates.node_overlay
            else _disabled_gate_rules("karpenter.sh", "nodeoverlays")
        ),
        *(
            _buffers()
            if gates.capacity_buffer
            else _disabled_gate_rules("autoscaling.x-k8s.io", "capacitybuffers")
        ),
        *(() if options.ignore_dra_requests else _devices()),
        *(_gangs() if options.gang_scheduling else ()),
        *(_surges() if options.surge_single_replicas else ()),
        *(_deletion_costs() if gates.pod_deletion_cost_management else ()),
        # The page names what the controller met in its last attempt for a pod.
        *([rule("", ["events"], ["list"])] if options.web_port else ()),
    ]


def _our_kinds() -> list[Rule]:
    return [
        rule("karpenter.sh", ["nodepools"], [*READ, "patch"]),
        rule("karpenter.sh", ["nodeclaims"], [*READ, "create", "patch", "delete"]),
        rule("karpenter.sh", ["nodepools/status", "nodeclaims/status"], ["patch"]),
        # The admission plugin OwnerReferencesPermissionEnforcement requires this to set
        # blockOwnerDeletion.
        rule("karpenter.sh", ["nodepools/finalizers", "nodeclaims/finalizers"], ["update"]),
        rule("karpenter.k8s.aws", ["ec2nodeclasses"], [*READ, "patch"]),
        rule("karpenter.k8s.aws", ["ec2nodeclasses/status"], ["patch"]),
        rule("joiner.dev", ["disruptions"], ["list", "create", "patch", "delete"]),
        rule("joiner.dev", ["disruptions/status"], ["patch"]),
    ]


def _nodes_and_pods() -> list[Rule]:
    core = ["pods", "nodes", "namespaces", "persistentvolumes", "persistentvolumeclaims"]
    csi = ["csinodes", "csidrivers", "csistoragecapacities"]
    return [
        rule("", [*core, "limitranges"], FOLLOW),
        rule("apps", ["daemonsets"], FOLLOW),
        rule("policy", ["poddisruptionbudgets"], FOLLOW),
        rule("storage.k8s.io", ["storageclasses", *csi, "volumeattachments"], FOLLOW),
        rule("", ["nodes"], ["get", "patch", "delete"]),
        rule("", ["pods"], ["delete"]),
        # The controller writes the pod's nominated node.
        rule("", ["pods/status"], ["patch"]),
        rule("", ["pods/eviction"], ["create"]),
        rule("", ["events"], ["create", "patch"]),
    ]


def _disabled_gate_rules(group: str, plural: str) -> list[Rule]:
    """Allow listing a kind's objects and reporting in their status that its gate is disabled."""
    return [rule(group, [plural], ["list"]), rule(group, [f"{plural}/status"], ["patch"])]


def _overlays() -> list[Rule]:
    return [
        rule("karpenter.sh", ["nodeoverlays"], READ),
        rule("karpenter.sh", ["nodeoverlays/status"], ["patch"]),
    ]


def _buffers() -> list[Rule]:
    return [
        rule("autoscaling.x-k8s.io", ["capacitybuffers"], READ),
        rule("autoscaling.x-k8s.io", ["capacitybuffers/status"], ["patch"]),
        rule("", ["podtemplates"], FOLLOW),
        rule("apps", ["deployments", "replicasets", "statefulsets"], FOLLOW),
    ]


def _workloads() -> list[Rule]:
    """Return the rules of workloads and Services.

    Replica counts tell how many more pods to expect; kube-dns has the DNS address of nodes.
    SCHEDULER_CONFIG needs the selectors of all. It may be set on the Deployment alone.
    """
    return [
        rule("", ["services"], READ),
        rule("", ["replicationcontrollers"], FOLLOW),
        rule("apps", ["replicasets", "statefulsets"], READ),
    ]


def _devices() -> list[Rule]:
    kinds = ["resourceclaims", "resourceslices", "deviceclasses", "devicetaintrules"]
    return [rule("resource.k8s.io", kinds, FOLLOW)]


def _gangs() -> list[Rule]:
    return [
        rule(group, ["podgroups"], FOLLOW) for group in ("scheduling.k8s.io", "scheduling.x-k8s.io")
    ]


def _surges() -> list[Rule]:
    return [rule("apps", ["deployments"], ["get", "patch"])]


def _deletion_costs() -> list[Rule]:
    return [rule("", ["pods"], ["patch"])]


def namespace_rules(options: Options) -> list[Rule]:
    """Return the controller's rules in the namespace of its Lease."""
    return [
        # RBAC cannot restrict `create` by resource name.
        rule("coordination.k8s.io", ["leases"], ["create"]),
        rule(
            "coordination.k8s.io",
            ["leases"],
            ["get", "patch"],
            resourceNames=[options.leader_election_name],
        ),
    ]


ADMINISTER = (*READ, "create", "update", "patch", "delete", "deletecollection")


def admin_rules() -> list[Rule]:
    """Return the rules that aggregate Joiner's kinds to the cluster's `admin` role."""
    return [
        rule(spec["group"], [*_resources(spec)], ADMINISTER)
        for spec in (definition["spec"] for definition in definitions())
    ]


def _resources(spec: Wire) -> Iterator[str]:
    """Yield the resources that a CRD defines: the plural name, then its subresources."""
    plural: str = spec["names"]["plural"]
    yield plural
    below = {part for version in spec["versions"] for part in version.get("subresources", {})}
    yield from (f"{plural}/{part}" for part in sorted(below))


@dataclass(frozen=True, kw_only=True)
class ObjectsArgs:
    """Namespace, name, image, identity, settings and scheduling of the controller."""

    namespace: pulumi.Input[str]
    name: pulumi.Input[str]
    image: pulumi.Input[str]
    replicas: pulumi.Input[int]
    cpu: pulumi.Input[str]
    memory: pulumi.Input[str]
    options: Options
    environment: Mapping[str, pulumi.Input[str]]
    """Environment variables in addition to the settings; they override settings."""

    secret_environment: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Environment variables that are stored in a Secret."""

    identity: Identity
    role_arn: pulumi.Input[str]
    """ARN of the IAM role that the controller's pods assume."""

    metrics_discovery: MetricsDiscovery = "none"
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Wire] = ()
    affinity: Wire = field(default_factory=dict)
    image_pull_secrets: Sequence[str] = ()
    dns_policy: DnsPolicy = "ClusterFirst"


def objects(args: ObjectsArgs, secret: pulumi.Input[str] = "") -> list[tuple[str, Wire]]:
    """Return the controller's objects in the cluster, each after those that it refers to.

    Each item is a pair: the suffix that the name of the resource gets in Pulumi, and the object as
    in YAML.

    Args:
        args: the arguments of the controller.
        secret: name of the Secret that has `args.secret_environment`; empty if there is none.

    """
    monitored = args.metrics_discovery == "service-monitor"
    return [
        ("", _service_account(args)),
        *_roles(args),
        ("", _service(args)),
        ("", _budget(args)),
        *([("-metrics", _service_monitor(args))] if monitored else []),
        (
            "",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": _metadata(args),
                "spec": deployment_spec(args, secret),
            },
        ),
    ]


def _labels(args: ObjectsArgs) -> dict[str, pulumi.Input[str]]:
    return {**args.extra_labels, **pod_labels(args.name)}


def _metadata(args: ObjectsArgs, **more: Any) -> dict[str, Any]:
    return {"name": args.name, "namespace": args.namespace, "labels": _labels(args), **more}


def _service_account(args: ObjectsArgs) -> Wire:
    by_annotation = {"annotations": {ROLE_ANNOTATION: args.role_arn}}
    more = by_annotation if args.identity == "irsa" else {}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(args, **more)}


RBAC = "rbac.authorization.k8s.io/v1"


def _roles(args: ObjectsArgs) -> Iterator[tuple[str, Wire]]:
    subjects = [{"kind": "ServiceAccount", "name": args.name, "namespace": args.namespace}]
    everywhere = {"name": args.name, "labels": _labels(args)}
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": everywhere}
    yield "", {**role, "rules": cluster_rules(args.options)}
    bound = {"roleRef": _reference("ClusterRole", args.name), "subjects": subjects}
    yield "", {**role, "kind": "ClusterRoleBinding", **bound}
    lease_name = then(args.name, lambda name: f"{name}-lease")
    place = args.options.leader_election_namespace or args.namespace
    lease = {
        "apiVersion": RBAC,
        "kind": "Role",
        "metadata": _metadata(args, name=lease_name, namespace=place),
    }
    yield "-lease", {**lease, "rules": namespace_rules(args.options)}
    bound = {"roleRef": _reference("Role", lease_name), "subjects": subjects}
    yield "-lease", {**lease, "kind": "RoleBinding", **bound}
    aggregate = {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}
    admin = {
        "name": then(args.name, lambda name: f"{name}-admin"),
        "labels": _labels(args) | aggregate,
    }
    yield "-admin", {**role, "metadata": admin, "rules": admin_rules()}


def _service(args: ObjectsArgs) -> Wire:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(args),
        "spec": {
            "type": "ClusterIP",
            "ports": [
                {
                    "name": "http-metrics",
                    "port": args.options.metrics_port,
                    "targetPort": "http-metrics",
                    "protocol": "TCP",
                }
            ],
            "selector": pod_labels(args.name),
        },
    }


def _budget(args: ObjectsArgs) -> Wire:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(args),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pod_labels(args.name)}},
    }


def _service_monitor(args: ObjectsArgs) -> Wire:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(args),
        "spec": {
            "selector": {"matchLabels": pod_labels(args.name)},
            "endpoints": [{"port": "http-metrics", "path": "/metrics"}],
        },
    }


@dataclass(frozen=True, kw_only=True)
class ControllerArgs(ObjectsArgs):
    """The objects, the cluster that they are in, and what must exist before them."""

    cluster: EksCluster
    create_namespace: bool = False
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)
    """Resources that must be ready before the first pod starts."""


TYPES: Mapping[str, Callable[..., pulumi.Resource]] = {
    "ServiceAccount": kubernetes.core.v1.ServiceAccount,
    "Service": kubernetes.core.v1.Service,
    "ClusterRole": kubernetes.rbac.v1.ClusterRole,
    "ClusterRoleBinding": kubernetes.rbac.v1.ClusterRoleBinding,
    "Role": kubernetes.rbac.v1.Role,
    "RoleBinding": kubernetes.rbac.v1.RoleBinding,
    "PodDisruptionBudget": kubernetes.policy.v1.PodDisruptionBudget,
    "Deployment": kubernetes.apps.v1.Deployment,
}
"""Pulumi's resource of each kind; others are CustomResources."""


ACCOUNT = "joiner.dev/service-account"
"""The annotation of the pods with the UID of their ServiceAccount."""


def _bound_to(account: kubernetes.core.v1.ServiceAccount, spec: Wire) -> Wire:
    """Return the Deployment's spec, which changes if the ServiceAccount is created again.

    The tokens of its pods name its UID, and the API server refuses them after that.
    """
    template = spec["template"]
    annotations = template["metadata"].get("annotations") or {}
    uid = account.metadata.apply(lambda metadata: metadata.uid or "")
    metadata = {**template["metadata"], "annotations": {**annotations, ACCOUNT: uid}}
    return {**spec, "template": {**template, "metadata": metadata}}


class Controller(pulumi.ComponentResource):
    """Service account, roles, Deployment, PodDisruptionBudget and Service."""

    def __init__(
        self, name: str, args: ControllerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:Controller", name, None, opts)
        self._name, self._args = name, args
        self._mine = pulumi.ResourceOptions(parent=self, depends_on=self._namespace())
        made: dict[tuple[str, str], pulumi.Resource] = {}
        for suffix, wire in objects(args, self._secret()):
            made[wire["kind"], suffix] = self._make(suffix, wire, made)
            if wire["kind"] == "Deployment" and pulumi.runtime.is_dry_run():
                self._report_settings(wire["spec"])
        self.register_outputs({"deployment": args.name})

    def _make(
        self, suffix: str, wire: Wire, made: Mapping[tuple[str, str], pulumi.Resource]
    ) -> pulumi.Resource:
        """Create the resource of an object; `made` has those before it, by kind and suffix."""
        kind, opts = wire["kind"], self._mine
        metadata = applied_by_us(wire["metadata"])
        if kind == "Service":
            # Pulumi would wait for the Service's endpoints, and the pods are created last.
            metadata["annotations"]["pulumi.com/skipAwait"] = "true"
        if kind.endswith("Binding"):
            after = [made[kind.removesuffix("Binding"), suffix]]
            opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=after))
        fields = {
            re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value
            for key, value in wire.items()
            if key not in ("apiVersion", "kind", "metadata")
        }
        if kind == "Deployment":
            bindings = [one for (known, _), one in made.items() if known.endswith("Binding")]
            account = made["ServiceAccount", ""]
            before = [*self._identity(account), *bindings, *self._args.after]
            opts = pulumi.ResourceOptions(parent=self, depends_on=before)
            fields["spec"] = _bound_to(account, fields["spec"])
        name = f"{self._name}{suffix}"
        if kind in TYPES:
            return TYPES[kind](name, metadata=metadata, **fields, opts=opts)
        other: pulumi.Resource = kubernetes.apiextensions.CustomResource(
            name, api_version=wire["apiVersion"], kind=kind, metadata=metadata, **fields, opts=opts
        )
        return other

    def _report_settings(self, spec: Wire) -> None:
        """Report in a preview which settings change; `spec` is the Deployment's."""
        recorded = recorded_properties("kubernetes:apps/v1:Deployment", self._name).get("spec")
        if recorded is not None:
            before, after = (
                each["template"]["spec"]["containers"][0].get("env") or ()
                for each in (recorded, spec)
            )
            if changes := changed_settings(before, after):
                pulumi.log.info(f"settings: {', '.join(changes)}", self)

    def _namespace(self) -> list[pulumi.Resource]:
        if not self._args.create_namespace:
            return []
        return [
            kubernetes.core.v1.Namespace(
                self._name,
                metadata=applied_by_us(
                    {"name": self._args.namespace, "labels": dict(self._args.extra_labels)}
                ),
                opts=pulumi.ResourceOptions(parent=self),
            )
        ]

    def _identity(self, account: pulumi.Resource) -> list[pulumi.Resource]:
        """Return the resources that pods need before they can obtain credentials."""
        args = self._args
        if args.identity != "pod-identity":
            return [account]
        given = PodIdentity(
            f"{self._name}-identity",
            args.cluster,
            namespace=args.namespace,
            service_account=args.name,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[account, *args.after]),
        )
        return [account, given]

    def _secret(self) -> pulumi.Input[str]:
        """Create the Secret for secret environment variables; return its name, or "" if none.

        Pulumi generates the name: changed values create a new Secret, and so replace the pods.
        """
        if not self._args.secret_environment:
            return ""
        secret = kubernetes.core.v1.Secret(
            f"{self._name}-env",
            metadata=applied_by_us(
                {"namespace": self._args.namespace, "labels": _labels(self._args)}
            ),
            string_data=self._args.secret_environment,
            opts=self._mine,
        )
        name: pulumi.Output[str] = secret.metadata["name"]
        return name


def pod_labels(name: pulumi.Input[str]) -> dict[str, pulumi.Input[str]]:
    """Return the labels of the controller's pods: Karpenter's, which other tools select by."""
    return {"app.kubernetes.io/name": "karpenter", "app.kubernetes.io/instance": name}


def deployment_spec(args: ObjectsArgs, secret: pulumi.Input[str] = "") -> dict[str, Any]:
    """Return the Deployment's spec.

    Replicas run on different nodes and zones, and never on nodes of an EC2NodeClass.

    Args:
        args: the arguments of the controller.
        secret: name of the Secret that has `args.secret_environment`; empty if there is none.

    """
    identity = then(args.role_arn, lambda arn: f"{args.identity} {arn}")
    return {
        "replicas": args.replicas,
        "revisionHistoryLimit": 10,
        "strategy": {"rollingUpdate": {"maxUnavailable": 1}},
        "selector": {"matchLabels": pod_labels(args.name)},
        "template": {
            "metadata": {
                "labels": {**args.extra_labels, **pod_labels(args.name)},
                "annotations": {
                    **_scrape_annotations(args),
                    **args.pod_annotations,
                    IDENTITY_ANNOTATION: identity,
                },
            },
            "spec": _pod(args, secret),
        },
    }


def _pod(args: ObjectsArgs, secret: pulumi.Input[str]) -> dict[str, Any]:
    selector = pod_labels(args.name)
    return {
        "serviceAccountName": args.name,
        "dnsPolicy": args.dns_policy,
        # Links to a Service named `web` or `metrics` would set WEB_PORT or METRICS_PORT.
        "enableServiceLinks": False,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"kubernetes.io/os": "linux", **args.node_selector},
        "tolerations": [CRITICAL, *map(dict, args.tolerations)],
        "affinity": _affinity(args),
        **_pull_secrets(args),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": selector},
            }
        ],
        "containers": [_container(args, secret)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def _scrape_annotations(args: ObjectsArgs) -> dict[str, str]:
    if args.metrics_discovery != "annotations":
        return {}
    where = {"port": str(args.options.metrics_port), "path": "/metrics", "scrape": "true"}
    return {f"prometheus.io/{key}": value for key, value in where.items()}


def _pull_secrets(args: ObjectsArgs) -> dict[str, Any]:
    secrets = [{"name": secret} for secret in args.image_pull_secrets]
    return {"imagePullSecrets": secrets} if secrets else {}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _affinity(args: ObjectsArgs) -> dict[str, Any]:
    """Return the pod's affinity: the user's settings, which override the default anti-affinity.

    The requirement that excludes nodes of an EC2NodeClass is added to every node selector term.
    """
    asked = dict(args.affinity)
    apart = {
        "labelSelector": {"matchLabels": pod_labels(args.name)},
        "topologyKey": "kubernetes.io/hostname",
    }
    of_nodes = dict(asked.pop("nodeAffinity", None) or {})
    # If the controller ran on a node that it manages, it could not replace that node. Nodes of EKS
    # Auto Mode have a NodePool, but no EC2NodeClass.
    not_ours = {"key": labels.EC2NODECLASS, "operator": "DoesNotExist"}
    terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[REQUIRED] = {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), not_ours]}
            for term in terms
        ]
    }
    return {"nodeAffinity": of_nodes, "podAntiAffinity": {REQUIRED: [apart]}, **asked}


def _container(args: ObjectsArgs, secret: pulumi.Input[str]) -> dict[str, Any]:
    options = args.options
    return {
        "name": CONTAINER,
        "image": args.image,
        "command": [*COMMAND],
        "env": [
            *environment(options, args.environment),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
                for name in sorted(args.secret_environment.keys() - args.environment.keys())
            ),
        ],
        "ports": [
            {"name": "http-metrics", "containerPort": options.metrics_port, "protocol": "TCP"},
            {"name": "http", "containerPort": options.health_probe_port, "protocol": "TCP"},
        ],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http"},
            "initialDelaySeconds": 30,
            "timeoutSeconds": 30,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "initialDelaySeconds": 5,
            "timeoutSeconds": 30,
        },
        "resources": {
            "requests": {"cpu": args.cpu, "memory": args.memory},
            "limits": {"memory": args.memory},
        },
        "securityContext": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Worker processes and certificates need a writable directory; the root is read-only.
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def environment(options: Options, more: Mapping[str, pulumi.Input[str]]) -> list[dict[str, Any]]:
    """Return the container's environment: non-default settings, `more`, and resource fields.

    `more` overrides settings. MEMORY_LIMIT (bytes) and CPU_REQUESTS (millicores) come from the
    container's resources unless they are set. Pulumi compares the entries by position. What every
    installation has comes first, so that a setting that is added moves as few entries as possible.
    """
    settings: Mapping[str, pulumi.Input[str]] = {**to_environment(options), **more}
    given = {"MEMORY_LIMIT": "limits.memory", "CPU_REQUESTS": "requests.cpu"}
    divisors = {"CPU_REQUESTS": "1m"}
    resources = [
        {
            "name": name,
            "valueFrom": {
                "resourceFieldRef": {
                    "containerName": CONTAINER,
                    "resource": resource,
                    "divisor": divisors.get(name, "1"),
                }
            },
        }
        for name, resource in given.items()
        if name not in settings
    ]
    values = [{"name": name, "value": settings[name]} for name in sorted(settings)]
    always = [entry for entry in values if entry["name"] in ALWAYS]
    return [*always, *resources, *(entry for entry in values if entry["name"] not in ALWAYS)]


def _reference(kind: str, name: pulumi.Input[str]) -> dict[str, Any]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
