"""The settings of the controller: names, types, units, defaults and descriptions.

Every field of `Options` is a setting; `run --help` prints the description below it. The environment
variable of a setting is the field's name in capitals (`BATCH_IDLE_DURATION`), its flag the name
in kebab case (`--batch-idle-duration=2s`). Names and defaults are Karpenter's where Karpenter has
the same setting. A flag overrides the environment variable, which overrides the default.
The Pulumi program writes settings with `to_environment`; the controller reads them with
`Options.parse`. This module reads no socket and no environment of the process, and
no file but its own source, for the descriptions.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from controller.apis.karpenter import durations
from controller.apis.meanings import meanings


class OptionsError(ValueError):
    """A setting is invalid; the message has its name, its value and what is allowed.

    Attributes:
        key: the environment variable, or the flag as written if no setting has that name.
        value: the invalid value; empty if there was none.
        allowed: a description of the valid values.

    """

    def __init__(self, key: str, value: str, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key}={value!r} cannot be used: allowed is {allowed}")


class UnknownFlagError(OptionsError):
    """An argument is not a flag of the controller; the message suggests the most similar flag."""

    def __init__(self, argument: str, flags: Iterable[str]) -> None:
        similar = nearest(argument.partition("=")[0], (f"--{flag}" for flag in flags))
        super().__init__(argument, "", "a flag that `joiner run --help` lists")
        self.args = (f"unknown flag {argument}{similar or '; allowed is ' + self.allowed}",)


class Constraint(Protocol):
    """Limits the values of a setting; `str()` of it describes the limit."""

    def admits(self, value: Any) -> bool:
        """Whether the value is allowed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number or of a duration; None means no bound."""

    minimum: float | timedelta | None = None
    maximum: float | timedelta | None = None

    def admits(self, value: Any) -> bool:
        """Whether the value lies within the bounds; the bounds themselves are allowed."""
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def __str__(self) -> str:
        parts = [("at least", self.minimum), ("at most", self.maximum)]
        return " and ".join(
            f"{word} {text_of(bound)}" for word, bound in parts if bound is not None
        )


@dataclass(frozen=True, slots=True)
class Length:
    """Maximum length of a text, in characters."""

    maximum: int

    def admits(self, value: Any) -> bool:
        """Whether the text is short enough."""
        return len(value) <= self.maximum

    def __str__(self) -> str:
        return f"up to {self.maximum} characters"


TagValue = Annotated[str, Length(256)]
Port = Annotated[int, Range(0, 65535)]
PositiveDuration = Annotated[timedelta, Range(timedelta(milliseconds=1))]
AnyDuration = Annotated[timedelta, Range(timedelta(0))]
SlowDuration = Annotated[timedelta, Range(timedelta(minutes=1))]
Count = Annotated[int, Range(0)]
Fraction = Annotated[float, Range(0)]

DisruptionMode = Literal["act", "recommend", "observe"]
LogLevel = Literal["debug", "info", "error"]
PreferencePolicy = Literal["Respect", "Ignore"]
MinValuesPolicy = Literal["Strict", "BestEffort"]


ALLOCATES = {"allocates_devices": True}
"""Metadata of a feature gate that has no effect if resource claims are ignored."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Karpenter's feature gates, written `NodeRepair=true,NodeOverlay=false`."""

    node_repair: bool = False
    """Replaces nodes that are unhealthy for longer than the toleration of their condition."""

    reserved_capacity: bool = True
    """Launches into capacity reservations first, because they are already paid for."""

    spot_to_spot_consolidation: bool = False
    """Replaces spot nodes with cheaper spot nodes. Off by default: EC2 may reclaim these sooner.
    Stacks, the chart and the manifests turn it on."""

    node_overlay: bool = False
    """Applies NodeOverlays to the prices and the capacity of instance types."""

    static_capacity: bool = False
    """Keeps `spec.replicas` nodes of a static NodePool, regardless of pending pods."""

    capacity_buffer: bool = False
    """Keeps capacity ready for the pods of CapacityBuffers."""

    terminate_first_drift: bool = False
    """Terminates a drifted node before its replacement is launched if there is no capacity for
    both: the capacity reservation is full, or a static NodePool is at its node limit."""

    terminate_first_repair: bool = False
    """Terminates an unhealthy node before its replacement is launched if there is no capacity for
    both: the capacity reservation is full, or a static NodePool is at its node limit."""

    pod_deletion_cost_management: bool = False
    """Writes `controller.kubernetes.io/pod-deletion-cost` on the pods of ReplicaSets, so that they
    scale down first on the nodes that Joiner disrupts next."""


@dataclass(frozen=True, slots=True)
class AWSFeatureGates:
    """Feature gates of the AWS provider, written `NodeClassCEL=true`."""

    node_class_cel: bool = field(default=False, metadata={"name": "NodeClassCEL"})
    """Allows expressions over the instance type in `spec.kubelet.maxPods`, `kubeReserved` and
    `systemReserved` of an EC2NodeClass. If it is off, an EC2NodeClass with one is not ready."""

    dra_nvidia_gpu: bool = field(default=False, metadata={"name": "DRANVIDIAGPU", **ALLOCATES})
    """Launches nodes for pods that claim GPUs of the DRA driver `gpu.nvidia.com`. It needs
    `IGNORE_DRA_REQUESTS=false`."""

    dra_efa: bool = field(default=False, metadata={"name": "DRAEFA", **ALLOCATES})
    """Launches nodes for pods that claim EFA interfaces of the DRA driver `dra.net`. It needs
    `IGNORE_DRA_REQUESTS=false`."""

    reboot_for_repair: bool = False
    """Reboots an unhealthy node if that can clear its GPU's fault; replaces it if that fails."""


GATE_DISABLED = "FeatureGateDisabled"
"""Reason of the condition of an object that has no effect because its feature gate is off."""


def gate_disabled(subject: str, gate: str) -> str:
    """Return the message that a feature gate is off; `subject` is the kind or field it concerns."""
    return (
        f"{subject} has no effect: the feature gate {gate} is off. To turn it on, add "
        f"{gate}=true to the setting FEATURE_GATES"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The settings of one controller."""

    cluster_name: str
    """Name of the EKS cluster. Joiner finds its EC2 instances by tags with this name, so there is
    no default."""

    installation: TagValue = ""
    """Value of the tag `joiner.dev/installation` on everything that Joiner creates in AWS. Joiner
    garbage-collects only resources with this tag and value, whatever other tags they have. If
    empty, the cluster's name."""

    cluster_endpoint: str = ""
    """URL of the API server that nodes join. If empty, Joiner reads it with eks:DescribeCluster."""

    cluster_ca_bundle: str = ""
    """CA bundle with which nodes verify the API server: PEM in base64. If empty, the CA bundle that
    the controller itself uses."""

    isolated_vpc: bool = False
    """Whether the VPC has no route to the Pricing and IAM APIs. If true, Joiner uses the on-demand
    prices that are part of its release, every EC2NodeClass reports their date, and an EC2NodeClass
    must set an existing `spec.instanceProfile`."""

    eks_control_plane: bool = False
    """Whether the API server is one of EKS, so that Joiner reads its version from EKS. It has no
    effect and is accepted for compatibility with Karpenter: Joiner always does this."""

    vm_memory_overhead_percent: Fraction = 0.075
    """Share of an instance type's memory that the hypervisor and the kernel use, as a fraction:
    0.075 is 7.5 %. It applies until a node of the instance type and AMI has reported its memory."""

    interruption_queue: str = ""
    """Name of the SQS queue that receives interruption events. Empty disables interruption
    handling."""

    reserved_enis: Count = 0
    """Number of network interfaces per node that pods cannot use, as with custom networking of the
    VPC CNI. They are excluded from the maximum number of pods."""

    prefix_delegation: bool = False
    """Whether the VPC CNI assigns prefixes of 16 addresses to nodes (its setting
    ENABLE_PREFIX_DELEGATION). If true, the maximum number of pods of a Nitro instance type is that
    of AWS's max-pods calculator: what its prefixes hold, at most 110, or 250 with more than 30
    vCPUs. `spec.kubelet.maxPods` of an EC2NodeClass has precedence."""

    disable_dry_run: bool = False
    """Whether to skip the dry-run calls to EC2 that validate an EC2NodeClass before it becomes
    ready."""

    enable_zonal_shift: bool = False
    """Whether Joiner honours ARC zonal shift: it launches and terminates no nodes in availability
    zones from which ARC has shifted the cluster away."""

    ami_refresh_interval: SlowDuration = timedelta(minutes=1)
    """Interval at which the AMIs of every EC2NodeClass are discovered again."""

    ssm_refresh_interval: SlowDuration = timedelta(hours=24)
    """How long the SSM parameters of AMI aliases are cached. A cluster with `al2023@latest` drifts
    to a new AMI within this time after the release, so clusters do not all drift at once. If the
    cached AMI is deprecated, Joiner reads the parameter again every 30 minutes. As with Karpenter,
    parameters of `ssmParameter` are cached for 5 minutes."""

    security_group_refresh_interval: SlowDuration = timedelta(minutes=1)
    """Interval at which the security groups of every EC2NodeClass are discovered again."""

    subnet_refresh_interval: SlowDuration = timedelta(minutes=1)
    """Interval at which the subnets of every EC2NodeClass are discovered again."""

    batch_idle_duration: PositiveDuration = timedelta(seconds=1)
    """How long the batch window stays open after the last pending pod arrived. A longer time puts
    more pods into one batch; a shorter one reduces the latency of a single pod. If every ReplicaSet
    and StatefulSet has created all its pods, the window closes after a fifth of this time."""

    batch_max_duration: PositiveDuration = timedelta(seconds=10)
    """Maximum length of the batch window while pending pods keep arriving."""

    registration_timeout: PositiveDuration = timedelta(minutes=15)
    """Maximum time from the launch of an instance until its node registers. After it, Joiner
    deletes the NodeClaim and terminates the instance. Increase it for AMIs that boot slowly."""

    solve_time_limit: PositiveDuration = timedelta(seconds=30)
    """Maximum time that one scheduling simulation searches for a cheaper solution before it uses
    the best one so far."""

    disruption_time_limit: PositiveDuration = timedelta(seconds=10)
    """Maximum time of one consolidation computation. After it, Joiner uses the commands found so
    far. It does not delay pending pods, but it delays the removal of empty nodes. Savings that
    evict the fewest pods are found first."""

    disruption_eviction_price: Fraction = 0.01
    """Cost in $ of evicting one pod whose priority and deletion cost are 0. The default is about
    the on-demand price of one CPU for 15 minutes, in which the pod starts again. Joiner
    consolidates a node only if the saving exceeds the cost of its evictions. 0 counts every saving,
    as Karpenter does."""

    node_price_per_hour: Fraction = 0.0
    """Fee per node in $ an hour, such as the price of a monitoring agent that is licensed per host.
    It is part of a node's price, in addition to the instance, its EBS volumes and its public IPv4
    address. The annotation `joiner.dev/node-price-per-hour` of a NodePool replaces it."""

    disruption_horizon: PositiveDuration = timedelta(hours=2)
    """Maximum time over which a saving counts against the cost of evictions. It is shorter if the
    evicted workloads have not run that long, or if a tenth of all pods were replaced more
    recently."""

    disruption_cool_down: PositiveDuration = timedelta(minutes=10)
    """Time after a pod's start in which its eviction costs more, up to three times as much, so that
    a pod is not evicted repeatedly. It is also the minimum to which DISRUPTION_HORIZON can
    shrink."""

    disruption_image_soak: AnyDuration = timedelta(minutes=10)
    """How long the first node of a NodePool with a new AMI must run before other drifted nodes are
    replaced. No drifted node is replaced while new nodes do not register or are not ready. `0s`
    replaces drifted nodes as fast as budgets allow, as Karpenter does."""

    surge_single_replicas: bool = False
    """Whether a drain restarts Deployments with one replica, so that the new pod runs before the
    old one is evicted. It applies to pods with the annotation `joiner.dev/surge: "true"`. The
    controller needs the right to patch Deployments, which the Pulumi program grants with this
    setting."""

    evict_for_resize: bool = False
    """Whether Joiner evicts other pods from a node on which an in-place resize of a pod is deferred
    for a minute, so that the kubelet can apply it. It evicts the cheapest pods that free enough
    capacity, and only if each of them gets another node."""

    disruption_mode: DisruptionMode = "act"
    """`act` executes disruption decisions. `recommend` records them as Disruptions and waits for
    the annotation `joiner.dev/approved=true`. `observe` only logs and counts decisions, to try
    Joiner beside Karpenter: it also launches no nodes for pods, holds no Lease and writes nothing.
    If a NodePool's annotation `joiner.dev/disruption-mode` is stricter, it applies."""

    preference_policy: PreferencePolicy = "Respect"
    """How preferred affinities and ScheduleAnyway topology spread constraints are treated in
    scheduling: `Respect` treats them as required and relaxes them if a pod does not schedule;
    `Ignore` ignores them."""

    min_values_policy: MinValuesPolicy = "Strict"
    """How `minValues` of requirements is treated: `Strict` does not launch if it cannot be
    satisfied; `BestEffort` relaxes it."""

    ignore_dra_requests: bool = True
    """Whether pods with resource claims (dynamic resource allocation, DRA) are ignored in
    scheduling. `false` needs Kubernetes 1.34 or later, which serves `resource.k8s.io/v1`. Joiner
    satisfies claims with devices that drivers have published. With the feature gates DRANVIDIAGPU
    and DRAEFA, it also launches nodes for claims."""

    gang_scheduling: bool = False
    """Whether the pods of a gang are scheduled together or not at all, and are disrupted together
    or not at all. Gangs are PodGroups of Kubernetes 1.37 or of the coscheduling plugin, JobSets,
    groups of a LeaderWorkerSet, and jobs that Kueue has admitted."""

    legacy_node_repair: bool = False
    """Whether the feature gate NodeRepair repairs nodes as Karpenter did until 1.14: it terminates
    an unhealthy node at once, without a drain, regardless of disruption budgets and annotations,
    and before a replacement is launched."""

    scheduler_config: str = ""
    """Default topology spread constraints of the cluster, as in kube-scheduler's configuration
    (`podTopologySpread.defaultConstraints`): a YAML or JSON document, or the path of a file with
    one. If empty, Joiner does not spread pods without constraints of their own."""

    feature_gates: FeatureGates = FeatureGates()
    """Feature gates that differ from their defaults, such as `NodeRepair=true`."""

    aws_feature_gates: AWSFeatureGates = AWSFeatureGates()
    """Feature gates of the AWS provider that differ from their defaults, such as
    `NodeClassCEL=true`."""

    karpenter_service: str = ""
    """Name of the controller's Service; for information only."""

    system_namespace: str = "kube-system"
    """Namespace of the controller. It is also the namespace of the Lease if
    LEADER_ELECTION_NAMESPACE is empty."""

    bind_address: str = ""
    """Address on which the metrics and health probe servers listen. Empty means all interfaces."""

    metrics_port: Port = 8080
    """Port of the metrics endpoint `/metrics`. 0 disables it."""

    health_probe_port: Port = 8081
    """Port of the health probes `/healthz` and `/readyz`. 0 disables them."""

    web_port: Port = 0
    """Port of the web page of `joiner web` for this cluster, on the loopback address of the
    controller's pod: reach it with `kubectl port-forward`. It only reads. 0 disables it. It runs in
    its own process, which needs memory for the cluster state and the instance types."""

    enable_profiling: bool = False
    """Whether the metrics server also serves profiles: `/debug/pprof/profile?seconds=30` shows
    where the event loop spends its time, `/debug/pprof/goroutine` where every task waits. The paths
    are Karpenter's; the responses are Python profiles as text."""

    disable_leader_election: bool = False
    """Whether the controller acts without the Lease. This is safe only if never more than one
    controller runs."""

    leader_election_name: str = "karpenter-leader-election"
    """Name of the Lease for leader election. The default is Karpenter's, so that Joiner and
    Karpenter never act at the same time. The Lease lasts 15 s and is renewed every 2 s; after 10 s
    without renewal the leader stops. As in Karpenter, these times are not configurable."""

    leader_election_namespace: str = ""
    """Namespace of the Lease. If empty, SYSTEM_NAMESPACE."""

    disable_controller_warmup: bool = True
    """Whether followers start their watches only when they lead. It has no effect and is accepted
    for compatibility with Karpenter: every replica watches, so a new leader can act at once."""

    disable_cluster_state_observability: bool = False
    """Whether to disable the metrics and events about the cluster state."""

    detailed_metrics: bool = False
    """Whether to serve metrics for every pod, node, NodeClaim and offering, as Karpenter always
    does. In a large cluster these are tens of thousands of series in every scrape."""

    node_and_pod_series_limit: Count = 1000
    """Maximum number of series of the node and pod metrics that Karpenter's dashboards read; above
    it they are not served. There are nine series for each node and one for each pod, so 1000
    suffices for 40 nodes and 600 pods. 0 disables them."""

    kube_client_qps: Count = 200
    """Sustained rate of requests to the Kubernetes API, in requests per second."""

    kube_client_burst: Count = 300
    """Maximum number of requests to the Kubernetes API in a burst."""

    memory_limit: Annotated[int, Range(-1)] = -1
    """Memory limit of the container, in bytes; -1 means no limit. When memory use reaches 90 % of
    the limit, the controller runs Python's garbage collection and logs a warning with its memory
    use."""

    cpu_requests: Count = 1000
    """CPU request of the container, in millicores. It determines how many objects each reconciler
    processes concurrently: depending on the reconciler, 10 to 1,000 with 1 CPU, and up to 1,000 or
    5,000 with 60 CPUs."""

    log_level: LogLevel = "info"
    """Log verbosity: lines below this level are not logged."""

    log_output_paths: tuple[str, ...] = ("stdout",)
    """Where log lines are written: `stdout`, `stderr` or files, separated by commas."""

    log_error_output_paths: tuple[str, ...] = ("stderr",)
    """Where errors of the logger itself are written: `stdout`, `stderr` or files, separated by
    commas."""

    @property
    def installation_tag(self) -> str:
        """Value of the tag that names this installation; by default the cluster's name."""
        return self.installation or self.cluster_name

    @property
    def lease_namespace(self) -> str:
        """Namespace of the leader election Lease."""
        return self.leader_election_namespace or self.system_namespace

    @classmethod
    def parse(cls, argv: Sequence[str], environ: Mapping[str, str]) -> Options:
        """Read the settings of a process: flags first, then the environment, then defaults.

        Args:
            argv: the arguments after the command, such as `["--log-level=debug"]`.
            environ: the environment; variables that are not settings are ignored.

        Raises:
            OptionsError: a flag is unknown, a value is not allowed, or `CLUSTER_NAME` is missing.

        """
        given = _given_texts(argv, environ)
        if not given["CLUSTER_NAME"]:
            raise OptionsError("CLUSTER_NAME", "", "the name of the EKS cluster")
        values = {
            setting.name: setting.read(text)
            for setting in SETTINGS
            # Templates render unset values as empty variables: the default applies.
            if (text := given[setting.variable])
        }
        options = cls(**values)
        if options.batch_max_duration < options.batch_idle_duration:
            raise OptionsError(
                "BATCH_MAX_DURATION",
                text_of(options.batch_max_duration),
                f"at least BATCH_IDLE_DURATION ({text_of(options.batch_idle_duration)})",
            )
        return options


def to_environment(options: Options) -> dict[str, str]:
    """Return the settings that differ from their defaults, by environment variable."""
    return {
        setting.variable: text_of(value)
        for setting in SETTINGS
        if (value := getattr(options, setting.name)) != setting.default
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A field of `Options` in its text form: variable, flag, default and description."""

    name: str
    type: Any
    default: Any

    @property
    def doc(self) -> str:
        """The description, from the string below the field."""
        return _descriptions()[self.name]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.name.upper()

    @property
    def flag(self) -> str:
        """The flag, without the leading dashes."""
        return self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag needs no value."""
        return self.type is bool

    def read(self, text: str) -> Any:
        """Return the setting's value for a text; raises `OptionsError`."""
        return value_of(text, self.type, key=self.variable)


def value_of(text: str, kind: Any, *, key: str) -> Any:
    """Return the value of a text for the type of a setting.

    `kind` is a type of `_READERS`, a Literal, a class of feature gates, or one of these with a
    `Constraint` in `Annotated`. `key` names the setting in the error.

    Raises:
        OptionsError: the text is not allowed.

    """
    words = describe_allowed(kind)
    kind, bounds = _split_bounds(kind)
    if typing.get_origin(kind) is Literal:
        if text not in typing.get_args(kind):
            raise OptionsError(key, text, words)
        return text
    if dataclasses.is_dataclass(kind):
        return _gates(text, typing.cast("type[Any]", kind), key)
    try:
        value = _READERS[kind][0](text)
    except ValueError as exc:
        raise OptionsError(key, text, words) from exc
    if bounds and not bounds.admits(value):
        raise OptionsError(key, text, words)
    return value


def describe_allowed(kind: Any) -> str:
    """Return a description of the texts that `value_of` accepts for a type."""
    kind, bounds = _split_bounds(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if dataclasses.is_dataclass(kind):
        names = _gate_names(typing.cast("type[Any]", kind))
        return f"a list such as {next(iter(names))}=true, of {', '.join(names)}"
    words = _READERS[kind][1]
    if not bounds:
        return words
    # Every value is a text, so the bounds alone describe what is allowed.
    return str(bounds) if kind is str else f"{words}, {bounds}"


def _split_bounds(kind: Any) -> tuple[Any, Constraint | None]:
    """Return a type and its bounds, None if it has none."""
    if typing.get_origin(kind) is Annotated:
        plain, bounds = typing.get_args(kind)
        return plain, bounds
    return kind, None


def _gates(text: str, kind: type[Any], key: str) -> Any:
    names = _gate_names(kind)
    switched: dict[str, bool] = {}
    for name, value in _gate_values(text):
        try:
            switched[name] = _truth(value)
        except ValueError as exc:
            raise OptionsError(
                key, f"{name}={value}" if value else name, describe_allowed(kind)
            ) from exc
    return kind(**{names[name]: value for name, value in switched.items() if name in names})


def ignored_gates(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each feature gate that is given and has no effect.

    Karpenter ignores gates that it does not know, and so does `Options.parse`: a chart may set
    gates of a later version.

    Raises:
        OptionsError: a flag is unknown.

    """
    given = _given_texts(argv, environ)
    are_ignored = _is_true(given["IGNORE_DRA_REQUESTS"] or "true")
    found = []
    for setting in SETTINGS:
        if not dataclasses.is_dataclass(setting.type):
            continue
        kind = typing.cast("type[Any]", setting.type)
        gates = {_gate_name(gate): gate for gate in dataclasses.fields(kind)}
        for name, value in _gate_values(given[setting.variable] or ""):
            gate = gates.get(name)
            if gate is None:
                ending = f"unknown feature gate {name} is ignored{nearest(name, gates)}"
                found.append(f"{setting.variable}: {ending}")
            elif are_ignored and "allocates_devices" in gate.metadata and _is_true(value):
                found.append(f"{setting.variable}: {name} needs IGNORE_DRA_REQUESTS=false")
    return found


MISSPELT = 0.9
"""The least similarity, from 0 to 1, at which the name of an environment variable is taken for a
misspelling of a setting. Variables that Kubernetes sets, such as KARPENTER_SERVICE_HOST, are less
similar to every setting."""


def misspelt_settings(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each environment variable whose name is nearly that of a setting."""
    known = {setting.variable for setting in SETTINGS}
    return [
        f"{name} is not a setting and is ignored; did you mean {similar[0]}?"
        for name in sorted(environ.keys() - known)
        if (similar := difflib.get_close_matches(name, known - environ.keys(), 1, MISSPELT))
    ]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the most similar known word, empty if none is similar."""
    by_lower = {each.lower(): each for each in known}
    similar = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.75)
    return f"; did you mean {by_lower[similar[0]]}?" if similar else ""


@functools.cache
def _descriptions() -> Mapping[str, str]:
    return dict(meanings(Options))


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield environment variable and value of each flag; `--flag value` and `--flag=value`."""
    by_flag = {setting.flag: setting for setting in SETTINGS}
    arguments = iter(argv)
    for argument in arguments:
        flag, has_value, value = argument.lstrip("-").partition("=")
        setting = by_flag.get(flag)
        if setting is None or not argument.startswith("-"):
            raise UnknownFlagError(argument, by_flag)
        if not has_value:
            value = "true" if setting.is_switch else next(arguments, "")
        if not value:
            raise OptionsError(argument, "", f"a value, as in --{flag}=…")
        yield setting.variable, value


def _given_texts(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the text of each setting by its environment variable; flags win."""
    given = {setting.variable: environ.get(setting.variable) for setting in SETTINGS}
    return given | dict(_flags(argv))


def _gate_values(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        yield name, value


def _gate_names(kind: type[Any]) -> dict[str, str]:
    """Return the field of each gate, by the gate's name."""
    return {_gate_name(gate): gate.name for gate in dataclasses.fields(kind)}


def _gate_name(gate: dataclasses.Field[bool]) -> str:
    return str(gate.metadata.get("name", gate.name.title().replace("_", "")))


_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def _is_true(text: str) -> bool:
    return _TRUTHS.get(text.lower(), False)


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


LARGEST = 2**63 - 1
"""Largest whole number: int64, as in Go and in the APIs that receive the settings."""


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > LARGEST:
        raise ValueError(text)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(path.strip() for path in text.split(",") if path.strip())
    if not paths:
        raise ValueError(text)
    return paths


_READERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "text"),
    bool: (_truth, "true or false"),
    int: (_whole, "a whole number"),
    float: (_finite, "a number"),
    timedelta: (durations.parse_finite, "a duration such as 500ms, 10s or 1m30s"),
    tuple[str, ...]: (_paths, "a list separated by commas"),
}


def text_of(value: Any) -> str:
    """Return the text of a value, as `Setting.read` accepts it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return durations.format_duration(value)
    if isinstance(value, tuple):
        return ",".join(value)
    if dataclasses.is_dataclass(value):
        return ",".join(
            f"{_gate_name(gate)}={text_of(getattr(value, gate.name))}"
            for gate in dataclasses.fields(value)
            if getattr(value, gate.name) != gate.default
        )
    return str(value)


_TYPES = typing.get_type_hints(Options, include_extras=True)
SETTINGS = tuple(
    Setting(name=member.name, type=_TYPES[member.name], default=member.default)
    for member in dataclasses.fields(Options)
)
"""Every setting, in the order of `Options`."""
