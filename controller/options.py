"""Every setting of the controller: its name, environment variable, default, unit and reason.

A setting is a field of `Options`; its declaration says all there is of it, in types, bounds
and words, and the manual prints it. Its environment variable is the field's name in
capitals (`BATCH_IDLE_DURATION`), its flag the same in kebab case
(`--batch-idle-duration=2s`); the names and defaults are Karpenter's. A flag wins over
the environment, the environment over the default. The bundle writes settings with
`to_environment`, the controller reads them with `Options.parse`; nothing here reads
a file, a socket or the process's environment.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta

from controller.apis import durations


class OptionsError(ValueError):
    """A setting cannot be used; says which, what it was, and what is allowed.

    Attributes:
        key: the environment variable (or the flag, as written, when no setting has that name).
        value: what was given; empty when nothing was.
        allowed: what would have been accepted, in words.

    """

    def __init__(self, key: str, value: str, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key}={value!r} cannot be used: allowed is {allowed}")


class Constraint(Protocol):
    """Narrows what a value may be; its text says how."""

    def admits(self, value: Any) -> bool:
        """Whether the value is allowed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number or of a duration, both included; None is no bound."""

    minimum: float | timedelta | None = None
    maximum: float | timedelta | None = None

    def admits(self, value: Any) -> bool:
        """Whether the value lies between the bounds."""
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
    """The most characters that a text may have."""

    maximum: int

    def admits(self, value: Any) -> bool:
        """Whether the text is short enough."""
        return len(value) <= self.maximum

    def __str__(self) -> str:
        return f"up to {self.maximum} characters"


def doc(text: str) -> Meta:
    """Return what is said of a setting, in one line."""
    return Meta(description=" ".join(text.split()))


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


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Features that can be switched; written `NodeRepair=true,NodeOverlay=false`."""

    node_repair: bool = False
    """Replaces nodes that stay unhealthy longer than their condition is tolerated."""

    reserved_capacity: bool = True
    """Launches into capacity reservations first: they are paid for already."""

    spot_to_spot_consolidation: bool = False
    """Replaces spot nodes by cheaper spot nodes; off, since cheaper pools are reclaimed sooner."""

    node_overlay: bool = False
    """Applies NodeOverlays to prices and capacities of instance types."""

    static_capacity: bool = False
    """Keeps `spec.replicas` nodes for a NodePool, whether or not pods need them."""

    capacity_buffer: bool = False
    """Keeps room for the pods of CapacityBuffers."""


@dataclass(frozen=True, slots=True)
class AWSFeatureGates:
    """Features of the AWS provider that can be switched; written `NodeClassCEL=true`."""

    node_class_cel: bool = field(default=False, metadata={"name": "NodeClassCEL"})
    """Takes expressions over the instance type for `spec.kubelet.maxPods`, `kubeReserved` and
    `systemReserved` of an EC2NodeClass; while it is closed a class with one is not ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The settings of one controller."""

    cluster_name: Annotated[
        str,
        doc("""
            The EKS cluster's name: it owns the tags by which instances are found again, so there
            is no default.
        """),
    ]

    installation: Annotated[
        TagValue,
        doc("""
            Value of the tag `joiner.dev/installation` on everything that is made in AWS: what does
            not bear it is not collected, whatever else it is tagged. The cluster's name when
            empty.
        """),
    ] = ""

    cluster_endpoint: Annotated[
        str,
        doc("URL of the API server that nodes join; asked of EKS when empty."),
    ] = ""

    cluster_ca_bundle: Annotated[
        str,
        doc("CA of that API server, PEM in base64; the controller's own CA when empty."),
    ] = ""

    isolated_vpc: Annotated[
        bool,
        doc("""
            The VPC has no way to the Pricing and IAM APIs. On-demand prices are then those that
            ship with the controller, whose date every EC2NodeClass tells, and EC2NodeClasses must
            name an instance profile that exists.
        """),
    ] = False

    eks_control_plane: Annotated[
        bool,
        doc("""
            The API server is EKS's, and its version is asked of EKS. Accepted for Karpenter's
            sake: it is asked there in any case.
        """),
    ] = False

    vm_memory_overhead_percent: Annotated[
        Fraction,
        doc("""
            Share of an instance's memory that the hypervisor and the kernel keep, 0.075 = 7.5 %.
            Used until a real node of the type has been seen.
        """),
    ] = 0.075

    interruption_queue: Annotated[
        str,
        doc("Name of the SQS queue with interruption events; empty means that nobody listens."),
    ] = ""

    reserved_enis: Annotated[
        Count,
        doc("""
            Network interfaces per node that pods may not use, as with custom VPC CNI networking.
        """),
    ] = 0

    prefix_delegation: Annotated[
        bool,
        doc("""
            The VPC CNI gives pods prefixes of 16 addresses (its ENABLE_PREFIX_DELEGATION). A node
            on Nitro then takes the pods that AWS's max-pods calculator allows: what its prefixes
            hold, but no more than 110, or 250 above 30 vCPUs. `spec.kubelet.maxPods` of an
            EC2NodeClass counts before it.
        """),
    ] = False

    disable_dry_run: Annotated[
        bool,
        doc("""
            Does not ask EC2 whether an EC2NodeClass could be launched before it is called ready.
        """),
    ] = False

    enable_zonal_shift: Annotated[
        bool,
        doc("Keeps out of availability zones from which ARC has shifted the cluster away."),
    ] = False

    ami_refresh_interval: Annotated[
        SlowDuration,
        doc("How often images are looked up again."),
    ] = timedelta(minutes=1)

    subnet_refresh_interval: Annotated[
        SlowDuration,
        doc("How often subnets are looked up again."),
    ] = timedelta(minutes=1)

    batch_idle_duration: Annotated[
        PositiveDuration,
        doc("""
            How long the batch stays open after the last pod. Long enough for a Deployment's pods
            to arrive together, short enough that one pod hardly notices. Once ReplicaSets and
            StatefulSets have all the pods they ask for, a fifth of it is enough.
        """),
    ] = timedelta(seconds=1)

    batch_max_duration: Annotated[
        PositiveDuration,
        doc("How long the batch stays open at most, when pods keep coming."),
    ] = timedelta(seconds=10)

    registration_timeout: Annotated[
        PositiveDuration,
        doc("""
            How long a node may take from its launch until it has joined the cluster; then its
            NodeClaim is given up, and its instance ended. Longer for images that boot slowly.
        """),
    ] = timedelta(minutes=15)

    solve_time_limit: Annotated[
        PositiveDuration,
        doc("How long one solve may look for something cheaper before its best answer is taken."),
    ] = timedelta(seconds=30)

    disruption_time_limit: Annotated[
        PositiveDuration,
        doc("""
            How long one look for nodes that could go, or be replaced by cheaper ones, may take
            before what was found is taken. Pods that wait for nodes do not wait for it, nodes that
            are empty do. The savings that move the fewest pods are found first.
        """),
    ] = timedelta(seconds=10)

    disruption_eviction_price: Annotated[
        Fraction,
        doc("""
            $ that moving one ordinary pod costs: what one CPU costs on demand in some fifteen
            minutes, for it starts anew. A node is consolidated only when that saves more than its
            moves cost; 0 counts savings alone, as Karpenter does.
        """),
    ] = 0.01

    disruption_horizon: Annotated[
        PositiveDuration,
        doc("""
            Within what time the saving must exceed what the moves cost, at most: within the time
            that the workloads that move have run, where that is shorter.
        """),
    ] = timedelta(hours=2)

    disruption_cool_down: Annotated[
        PositiveDuration,
        doc("""
            For how long after a pod's start moving it costs more, up to three times as much, so
            that nobody is moved again at once; and the least that DISRUPTION_HORIZON can shrink to.
        """),
    ] = timedelta(minutes=10)

    disruption_image_soak: Annotated[
        AnyDuration,
        doc("""
            For how long the first node of a pool that runs a new machine image (AMI) is watched
            before other drifted nodes follow it. They never follow while new nodes do not join, or
            are not ready. `0s` lets all go as fast as budgets allow, as Karpenter does.
        """),
    ] = timedelta(minutes=10)

    surge_single_replicas: Annotated[
        bool,
        doc("""
            Rolls Deployments of a single pod when its node drains, so that the next pod runs before
            that one goes: those whose pods have the annotation `joiner.dev/surge: "true"`. Needs
            the right to patch Deployments, which the program grants with it.
        """),
    ] = False

    disruption_mode: Annotated[
        DisruptionMode,
        doc("""
            `act` carries decisions to disrupt nodes out; `recommend` writes them down as
            Disruptions and waits for the annotation `joiner.dev/approved=true`; `observe` only logs
            and counts them, makes no nodes for pods either, holds no Lease and writes nothing
            anywhere: to try Joiner beside Karpenter. A NodePool's annotation
            `joiner.dev/disruption-mode` counts where it is the stricter one.
        """),
    ] = "act"

    preference_policy: Annotated[
        PreferencePolicy,
        doc("""
            Whether preferred affinities and ScheduleAnyway spreads count while simulating:
            `Respect` tries them first and relaxes, `Ignore` packs as if they were not there.
        """),
    ] = "Respect"

    min_values_policy: Annotated[
        MinValuesPolicy,
        doc("""
            Whether a requirement's `minValues` must hold (`Strict`) or may be lowered when no
            offering satisfies it (`BestEffort`).
        """),
    ] = "Strict"

    ignore_dra_requests: Annotated[
        bool,
        doc("""
            Leaves pods with resource claims (dynamic resource allocation) alone. `false` needs
            Kubernetes 1.34, the first to serve `resource.k8s.io/v1`; what devices nodes yet to be
            made will have is not known on AWS, so that claims are met by those that drivers have
            published.
        """),
    ] = True

    scheduler_config: Annotated[
        str,
        doc("""
            The cluster's default topology spread constraints, as kube-scheduler was given them
            (`podTopologySpread.defaultConstraints`): the path of a YAML file, or its content when
            it begins with `{`. Empty means that pods that state none are spread by chance.
        """),
    ] = ""

    feature_gates: Annotated[
        FeatureGates,
        doc("What is switched on beyond the defaults."),
    ] = FeatureGates()

    aws_feature_gates: Annotated[
        AWSFeatureGates,
        doc("The same, for the AWS provider."),
    ] = AWSFeatureGates()

    karpenter_service: Annotated[
        str,
        doc("Name of the Service in front of the controller; for information only."),
    ] = ""

    system_namespace: Annotated[
        str,
        doc("Namespace the controller runs in; its Lease lives there when no other is named."),
    ] = "kube-system"

    bind_address: Annotated[
        str,
        doc("Address the metrics and probe servers listen on; empty means all interfaces."),
    ] = ""

    metrics_port: Annotated[Port, doc("Port of `/metrics`; 0 switches it off.")] = 8080

    health_probe_port: Annotated[
        Port,
        doc("Port of `/healthz` and `/readyz`; 0 switches them off."),
    ] = 8081

    enable_profiling: Annotated[
        bool,
        doc("""
            Serves profiles beside the metrics: `/debug/pprof/profile?seconds=30` (what the event
            loop spends its time on) and `/debug/pprof/goroutine` (where every task waits). The
            paths are Karpenter's; the answers are Python's, as text.
        """),
    ] = False

    disable_leader_election: Annotated[
        bool,
        doc("Acts without holding the Lease; only safe where a single controller can ever run."),
    ] = False

    leader_election_name: Annotated[
        str,
        doc("""
            Name of the Lease. Karpenter's, so that the two can never act at once. It lasts 15 s,
            is renewed every 2 s, and given up after 10 s without: client-go's defaults. Karpenter
            has no settings for these, and neither have we.
        """),
    ] = "karpenter-leader-election"

    leader_election_namespace: Annotated[
        str,
        doc("Namespace of the Lease; the controller's own when empty."),
    ] = ""

    disable_controller_warmup: Annotated[
        bool,
        doc("""
            Whether followers wait with their watches until they lead. Accepted for Karpenter's
            sake: every replica watches, so that the next leader can act at once.
        """),
    ] = True

    disable_cluster_state_observability: Annotated[
        bool,
        doc("Leaves out the metrics and events about the mirror of the cluster."),
    ] = False

    detailed_metrics: Annotated[
        bool,
        doc("""
            Serves a series for every pod, node, NodeClaim and offering too, as Karpenter always
            does. They grow with the cluster and the region: tens of thousands, each read by every
            scrape.
        """),
    ] = False

    kube_client_qps: Annotated[
        Count,
        doc("Requests per second to the Kubernetes API, sustained."),
    ] = 200

    kube_client_burst: Annotated[
        Count,
        doc("Requests to the Kubernetes API that may go out at once."),
    ] = 300

    memory_limit: Annotated[
        int,
        Range(-1),
        doc("""
            Bytes of memory the container may use; -1 when it has no limit. From 90 % of it on,
            garbage is collected at once, and a warning says how near the limit is.
        """),
    ] = -1

    cpu_requests: Annotated[
        Count,
        doc("""
            Thousandths of a CPU the container may count on. How many objects each loop works on at
            once follows: from 10 or 100 with one CPU to 1,000 or 5,000 with sixty.
        """),
    ] = 1000

    log_level: Annotated[LogLevel, doc("The least severe lines that are logged.")] = "info"

    log_output_paths: Annotated[
        tuple[str, ...],
        doc("Where lines go: `stdout`, `stderr` or files, separated by commas."),
    ] = ("stdout",)

    log_error_output_paths: Annotated[
        tuple[str, ...],
        doc("Where it is said that a log line could not be written: `stdout`, `stderr` or files."),
    ] = ("stderr",)

    @property
    def installation_tag(self) -> str:
        """Value of the tag that names this installation."""
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
            environ: the environment; names that are no settings are ignored.

        Raises:
            OptionsError: a flag is unknown, a value is not allowed, or `CLUSTER_NAME` is missing.

        """
        given = {setting.variable: environ.get(setting.variable) for setting in SETTINGS}
        given |= dict(_flags(argv))
        if not given["CLUSTER_NAME"]:
            raise OptionsError("CLUSTER_NAME", "", "the name of the EKS cluster")
        values = {
            setting.name: setting.read(text)
            for setting in SETTINGS
            # An empty variable is one that a template left blank: the default applies.
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
    """Write the settings that differ from their defaults, by environment variable."""
    return {
        setting.variable: text_of(value)
        for setting in SETTINGS
        if (value := getattr(options, setting.name)) != setting.default
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of `Options` as people write it."""

    name: str
    type: Any
    default: Any
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.name.upper()

    @property
    def flag(self) -> str:
        """The flag, without dashes in front."""
        return self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand without a value."""
        return self.type is bool

    def read(self, text: str) -> Any:
        """Turn text into the setting's value; raises `OptionsError`."""
        return value_of(text, self.type, key=self.variable)


def value_of(text: str, kind: Any, *, key: str) -> Any:
    """Turn text into a value of a kind: a type of `_READERS`, a Literal, gates, or one `Annotated`.

    Raises:
        OptionsError: the text is not allowed; names the key.

    """
    bounds: Constraint | None = None
    if typing.get_origin(kind) is Annotated:
        kind, bounds = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return _one_of(text, typing.get_args(kind), key)
    if dataclasses.is_dataclass(kind):
        return _gates(text, typing.cast("type[Any]", kind), key)
    reader, words = _READERS[kind]
    if bounds:
        # Every value is text; a form says it all.
        words = str(bounds) if kind is str else f"{words}, {bounds}"
    try:
        value = reader(text)
    except ValueError as exc:
        raise OptionsError(key, text, words) from exc
    if bounds and not bounds.admits(value):
        raise OptionsError(key, text, words)
    return value


def _one_of(text: str, choices: tuple[str, ...], key: str) -> str:
    if text not in choices:
        raise OptionsError(key, text, " or ".join(choices))
    return text


def _gates(text: str, kind: type[Any], key: str) -> Any:
    names = {_gate_name(gate): gate.name for gate in dataclasses.fields(kind)}
    allowed = f"a list such as {next(iter(names))}=true, of {', '.join(names)}"
    switched: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            switched[names[name]] = _truth(value)
        except (KeyError, ValueError) as exc:
            raise OptionsError(key, part, allowed) from exc
    return kind(**switched)


def _settings() -> Iterator[Setting]:
    types = typing.get_type_hints(Options, include_extras=True)
    for member in dataclasses.fields(Options):
        kind, *bounds, about = typing.get_args(types[member.name])
        yield Setting(
            name=member.name,
            type=Annotated[kind, *bounds] if bounds else kind,
            default=member.default,
            doc=about.description,
        )


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield environment variable and value of each flag; `--flag value` and `--flag=value`."""
    by_flag = {setting.flag: setting for setting in SETTINGS}
    arguments = iter(argv)
    for argument in arguments:
        flag, has_value, value = argument.lstrip("-").partition("=")
        setting = by_flag.get(flag)
        if setting is None or not argument.startswith("-"):
            raise OptionsError(argument, "", "--" + ", --".join(by_flag))
        if not has_value:
            value = "true" if setting.is_switch else next(arguments, "")
        if not value:
            raise OptionsError(argument, "", f"a value, as in --{flag}=…")
        yield setting.variable, value


def _gate_name(gate: dataclasses.Field[bool]) -> str:
    return str(gate.metadata.get("name", gate.name.title().replace("_", "")))


_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


LARGEST = 2**63 - 1
"""Of whole numbers, in Go as in the APIs that settings end in."""


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
    return tuple(path.strip() for path in text.split(",") if path.strip())


_READERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "text"),
    bool: (_truth, "true or false"),
    int: (_whole, "a whole number"),
    float: (_finite, "a number"),
    timedelta: (durations.parse_finite, "a duration such as 500ms, 10s or 1m30s"),
    tuple[str, ...]: (_paths, "a list separated by commas"),
}


def text_of(value: Any) -> str:
    """Write a value as `Setting.read` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return durations.written(value)
    if isinstance(value, tuple):
        return ",".join(value)
    if dataclasses.is_dataclass(value):
        return ",".join(
            f"{_gate_name(gate)}={text_of(getattr(value, gate.name))}"
            for gate in dataclasses.fields(value)
            if getattr(value, gate.name) != gate.default
        )
    return str(value)


SETTINGS: tuple[Setting, ...] = tuple(_settings())
"""Every setting, in the order of `Options`."""
