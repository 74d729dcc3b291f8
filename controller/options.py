"""Every setting of the controller: its name, environment variable, default, unit and reason.

A setting is a field of `Options`. Its environment variable is the field's name in
capitals (`BATCH_IDLE_DURATION`), its flag the same in kebab case
(`--batch-idle-duration=2s`); the names and defaults are Karpenter's. A flag wins over
the environment, the environment over the default. The bundle writes settings with
`to_environment`, the controller reads them with `Options.parse`; nothing here reads
a file, a socket or the process's environment.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol


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


TagValue = Annotated[str, Length(256)]
Port = Annotated[int, Range(0, 65535)]
PositiveDuration = Annotated[timedelta, Range(timedelta(milliseconds=1))]
SlowDuration = Annotated[timedelta, Range(timedelta(minutes=1))]
Count = Annotated[int, Range(0)]
Fraction = Annotated[float, Range(0)]

LogLevel = Literal["debug", "info", "error"]
PreferencePolicy = Literal["Respect", "Ignore"]
MinValuesPolicy = Literal["Strict", "BestEffort"]


NOT_THERE: Mapping[str, bool] = {"not_there": True}
"""Marks a gate that is accepted because Karpenter has it, and opens nothing here yet."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Features that can be switched; written `NodeRepair=true,NodeOverlay=false`."""

    node_repair: bool = field(default=False, metadata=NOT_THERE)
    """Replaces nodes that stay unhealthy longer than their condition is tolerated. Not there
    yet."""

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

    node_class_cel: bool = field(default=False, metadata={"name": "NodeClassCEL", **NOT_THERE})
    """Takes expressions over the instance type for `spec.kubelet.maxPods`, `kubeReserved` and
    `systemReserved` of an EC2NodeClass. Not there yet: a class with one is not ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The settings of one controller."""

    cluster_name: str
    """The EKS cluster's name: it owns the tags by which instances are found again, so there
    is no default."""

    installation: TagValue = ""
    """Value of the tag `joiner.dev/installation` on everything that is made in AWS: what does not
    bear it is not collected, whatever else it is tagged. The cluster's name when empty."""

    cluster_endpoint: str = ""
    """URL of the API server that nodes join; asked of EKS when empty."""

    cluster_ca_bundle: str = ""
    """CA of that API server, PEM in base64; the controller's own CA when empty."""

    isolated_vpc: bool = False
    """The VPC has no way to the Pricing and IAM APIs. On-demand prices are then those that ship
    with the controller, whose date every EC2NodeClass tells, and EC2NodeClasses must name an
    instance profile that exists."""

    eks_control_plane: bool = False
    """The API server is EKS's, and its version is asked of EKS. Accepted for Karpenter's sake: it
    is asked there in any case."""

    vm_memory_overhead_percent: Fraction = 0.075
    """Share of an instance's memory that the hypervisor and the kernel keep, 0.075 = 7.5 %.
    Used until a real node of the type has been seen."""

    interruption_queue: str = ""
    """Name of the SQS queue with interruption events; empty means that nobody listens."""

    reserved_enis: Count = 0
    """Network interfaces per node that pods may not use, as with custom VPC CNI networking."""

    disable_dry_run: bool = False
    """Does not ask EC2 whether an EC2NodeClass could be launched before it is called ready."""

    enable_zonal_shift: bool = False
    """Keeps out of availability zones from which ARC has shifted the cluster away."""

    ami_refresh_interval: SlowDuration = timedelta(minutes=1)
    """How often images are looked up again."""

    subnet_refresh_interval: SlowDuration = timedelta(minutes=1)
    """How often subnets are looked up again."""

    batch_idle_duration: PositiveDuration = timedelta(seconds=1)
    """How long the batch stays open after the last pod. Long enough for a Deployment's pods to
    arrive together, short enough that one pod hardly notices."""

    batch_max_duration: PositiveDuration = timedelta(seconds=10)
    """How long the batch stays open at most, when pods keep coming."""

    solve_time_limit: PositiveDuration = timedelta(seconds=30)
    """How long one solve may look for something cheaper before its best answer is taken."""

    disruption_time_limit: PositiveDuration = timedelta(seconds=60)
    """How long one look for nodes that could go, or be replaced by cheaper ones, may take before
    what was found is taken. Pods that wait for nodes do not wait for it."""

    disruption_eviction_price: Fraction = 0.01
    """$ that moving one ordinary pod costs: about two minutes of its share of a node, while it
    starts anew. A node is consolidated only when that saves more than its moves cost; 0 counts
    savings alone, as Karpenter does."""

    disruption_horizon: PositiveDuration = timedelta(hours=2)
    """Within what time the saving must exceed what the moves cost."""

    disruption_cool_down: PositiveDuration = timedelta(minutes=10)
    """For how long after a pod's start moving it costs more, up to three times as much, so that
    nobody is moved again at once."""

    preference_policy: PreferencePolicy = "Respect"
    """Whether preferred affinities and ScheduleAnyway spreads count while simulating: `Respect`
    tries them first and relaxes, `Ignore` packs as if they were not there."""

    min_values_policy: MinValuesPolicy = "Strict"
    """Whether a requirement's `minValues` must hold (`Strict`) or may be lowered when no offering
    satisfies it (`BestEffort`)."""

    ignore_dra_requests: bool = True
    """Leaves pods with resource claims (dynamic resource allocation) alone. `false` needs
    Kubernetes 1.34, the first to serve `resource.k8s.io/v1`; what devices nodes yet to be made
    will have is not known on AWS, so that claims are met by those that drivers have published."""

    scheduler_config: str = ""
    """The cluster's default topology spread constraints, as kube-scheduler was given them
    (`podTopologySpread.defaultConstraints`): the path of a YAML file, or its content when it
    begins with `{`. Empty means that pods that state none are spread by chance."""

    feature_gates: FeatureGates = FeatureGates()
    """What is switched on beyond the defaults."""

    aws_feature_gates: AWSFeatureGates = AWSFeatureGates()
    """The same, for the AWS provider."""

    karpenter_service: str = ""
    """Name of the Service in front of the controller; for information only."""

    system_namespace: str = "kube-system"
    """Namespace the controller runs in; its Lease lives there when no other is named."""

    bind_address: str = ""
    """Address the metrics and probe servers listen on; empty means all interfaces."""

    metrics_port: Port = 8080
    """Port of `/metrics`; 0 switches it off."""

    health_probe_port: Port = 8081
    """Port of `/healthz` and `/readyz`; 0 switches them off."""

    enable_profiling: bool = False
    """Serves profiles beside the metrics: `/debug/pprof/profile?seconds=30` (what the event loop
    spends its time on) and `/debug/pprof/goroutine` (where every task waits). The paths are
    Karpenter's; the answers are Python's, as text."""

    disable_leader_election: bool = False
    """Acts without holding the Lease; only safe where a single controller can ever run."""

    leader_election_name: str = "karpenter-leader-election"
    """Name of the Lease. Karpenter's, so that the two can never act at once. It lasts 15 s, is
    renewed every 2 s, and given up after 10 s without: client-go's defaults. Karpenter has no
    settings for these, and neither have we."""

    leader_election_namespace: str = ""
    """Namespace of the Lease; the controller's own when empty."""

    disable_controller_warmup: bool = True
    """Whether followers wait with their watches until they lead. Accepted for Karpenter's sake:
    every replica watches, so that the next leader can act at once."""

    disable_cluster_state_observability: bool = False
    """Leaves out the metrics and events about the mirror of the cluster."""

    detailed_metrics: bool = False
    """Serves a series for every pod, node, NodeClaim and offering too, as Karpenter always does.
    They grow with the cluster and the region: tens of thousands, each read by every scrape."""

    kube_client_qps: Count = 200
    """Requests per second to the Kubernetes API, sustained."""

    kube_client_burst: Count = 300
    """Requests to the Kubernetes API that may go out at once."""

    memory_limit: Annotated[int, Range(-1)] = -1
    """Bytes of memory the container may use; -1 when it has no limit. From 90 % of it on, garbage
    is collected at once, and a warning says how near the limit is."""

    cpu_requests: Count = 1000
    """Thousandths of a CPU the container may count on. How many objects each loop works on at once
    follows: from 10 or 100 with one CPU to 1,000 or 5,000 with sixty."""

    log_level: LogLevel = "info"
    """The least severe lines that are logged."""

    log_output_paths: tuple[str, ...] = ("stdout",)
    """Where lines go: `stdout`, `stderr` or files, separated by commas."""

    log_error_output_paths: tuple[str, ...] = ("stderr",)
    """Where it is said that a log line could not be written: `stdout`, `stderr` or files."""

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


def not_there(options: Options) -> list[str]:
    """Name the gates that are switched on and open nothing."""
    return [
        _gate_name(gate)
        for gates in (options.feature_gates, options.aws_feature_gates)
        for gate in dataclasses.fields(gates)
        if gate.metadata.get("not_there") and getattr(gates, gate.name)
    ]


def to_environment(options: Options) -> dict[str, str]:
    """Write the settings that differ from their defaults, by environment variable."""
    return {
        setting.variable: text_of(value)
        for setting in SETTINGS
        if (value := getattr(options, setting.name)) != setting.default
    }


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of `Options` as people write it."""

    name: str
    type: Any
    default: Any

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


def _settings() -> tuple[Setting, ...]:
    types = typing.get_type_hints(Options, include_extras=True)
    return tuple(
        Setting(member.name, types[member.name], member.default)
        for member in dataclasses.fields(Options)
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

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


def _duration(text: str) -> timedelta:
    if not _DURATION.fullmatch(text):
        raise ValueError(text)
    parts = _DURATION_PART.findall(text)
    try:
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())
    except OverflowError:
        raise ValueError(text) from None


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
    timedelta: (_duration, "a duration such as 500ms, 10s or 1m30s"),
    tuple[str, ...]: (_paths, "a list separated by commas"),
}


def text_of(value: Any) -> str:
    """Write a value as `Setting.read` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return _duration_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    if dataclasses.is_dataclass(value):
        return ",".join(
            f"{_gate_name(gate)}={text_of(getattr(value, gate.name))}"
            for gate in dataclasses.fields(value)
            if getattr(value, gate.name) != gate.default
        )
    return str(value)


def _duration_text(duration: timedelta) -> str:
    rest, text = duration, ""
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, length)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


SETTINGS: tuple[Setting, ...] = _settings()
"""Every setting, in the order of `Options`."""
