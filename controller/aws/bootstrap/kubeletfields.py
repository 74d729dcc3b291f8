"""The fields of KubeletConfiguration, validated as strictly as the kubelet validates them.

Source: `k8s.io/kubelet/config/v1beta1` of Kubernetes 1.37, with `logging` and `tracing` of
`k8s.io/component-base`. A kubelet with an unknown field in its configuration does not start, and
its node never joins the cluster. The controller therefore reports such a field before a launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = int
# As in Go: a unit may have a decimal fraction, and only 0 may omit the unit.
DURATION = r"^[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$"
"""Pattern of a duration as Go parses it; it may be negative."""

_Duration = Annotated[str, msgspec.Meta(pattern=DURATION)]
_Texts = dict[str, str]

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_LONGEST = 100
"""The number of characters of a field's name that a message shows."""


def _group(name: str, **fields: object) -> Any:
    """Return a struct type with only these fields, each of them optional and nullable."""
    # The kubelet's own names are kept: a rename rule fails on three capitals in a row.
    return msgspec.defstruct(
        name,
        [(field, kind | None, None) for field, kind in fields.items()],  # type: ignore[operator]
        forbid_unknown_fields=True,
        kw_only=True,
    )


_ROUTING = {"splitStream": bool, "infoBufferSize": str | int}
_LOGGING = _group(
    "Logging",
    format=str,
    flushFrequency=_Int64 | _Duration,
    verbosity=_Int32,
    vmodule=list[_group("VModule", filePattern=str, verbosity=_Int32)],  # type: ignore[misc]
    options=_group(
        "LoggingOptions", text=_group("Text", **_ROUTING), json=_group("Json", **_ROUTING)
    ),
)
_AUTHENTICATION = _group(
    "Authentication",
    x509=_group("X509", clientCAFile=str),
    webhook=_group("WebhookAuthentication", enabled=bool, cacheTTL=_Duration),
    anonymous=_group("Anonymous", enabled=bool),
)
_AUTHORIZATION = _group(
    "Authorization",
    mode=str,
    webhook=_group(
        "WebhookAuthorization", cacheAuthorizedTTL=_Duration, cacheUnauthorizedTTL=_Duration
    ),
)
_SHUTDOWN = _group("Shutdown", priority=_Int32, shutdownGracePeriodSeconds=_Int64)
_RESERVED_MEMORY = _group("ReservedMemory", numaNode=_Int32, limits=dict[str, str | int | float])


def _each(kind: object, names: str) -> dict[str, object]:
    return dict.fromkeys(names.split(), kind)


_KUBELET = _group(
    "KubeletConfiguration",
    **_each(
        str,
        """
        apiVersion kind staticPodPath podLogsDir staticPodURL address tlsCertFile tlsPrivateKeyFile
        tlsMinVersion imagePullCredentialsVerificationPolicy healthzBindAddress clusterDomain
        kubeletCgroups systemCgroups cgroupRoot cgroupDriver cpuManagerPolicy memoryManagerPolicy
        topologyManagerPolicy topologyManagerScope hairpinMode podCIDR resolvConf contentType
        containerLogMaxSize configMapAndSecretChangeDetectionStrategy reservedSystemCPUs
        showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir
        providerID memoryReservationPolicy containerRuntimeEndpoint imageServiceEndpoint
        """,
    ),
    **_each(
        bool,
        """
        enableServer rotateCertificates serverTLSBootstrap enableDebuggingHandlers
        enableContentionProfiling cgroupsPerQOS singleProcessOOMKill runOnce cpuCFSQuota
        serializeImagePulls mergeDefaultEvictionSettings enableControllerAttachDetach
        protectKernelDefaults makeIPTablesUtilChains failSwapOn kernelMemcgNotification
        enableSystemLogHandler enableSystemLogQuery enableProfilingHandler enableDebugFlagsHandler
        seccompDefault registerNode localStorageCapacityIsolation failCgroupV1
        """,
    ),
    **_each(
        _Int32,
        """
        port readOnlyPort registryPullQPS registryBurst eventRecordQPS eventBurst healthzPort
        oomScoreAdj nodeLeaseDurationSeconds nodeStatusMaxImages kubeAPIQPS kubeAPIBurst
        maxParallelImagePulls iptablesMasqueradeBit iptablesDropBit containerLogMaxFiles
        containerLogMaxWorkers
        """,
    ),
    **_each(_Int64, "podPidsLimit maxOpenFiles"),
    **_each(
        _Duration,
        """
        syncFrequency fileCheckFrequency httpCheckFrequency streamingConnectionIdleTimeout
        nodeStatusUpdateFrequency nodeStatusReportFrequency imageMinimumGCAge imageMaximumGCAge
        volumeStatsAggPeriod cpuManagerReconcilePeriod runtimeRequestTimeout cpuCFSQuotaPeriod
        evictionPressureTransitionPeriod containerLogMonitorInterval shutdownGracePeriod
        shutdownGracePeriodCriticalPods
        """,
    ),
    **_each(
        list[str],
        """
        tlsCipherSuites preloadedImagesVerificationAllowlist clusterDNS enforceNodeAllocatable
        allowedUnsafeSysctls
        """,
    ),
    **_each(
        _Texts,
        """
        cpuManagerPolicyOptions topologyManagerPolicyOptions qosReserved defaultPodSysctls
        """,
    ),
    # The `kubelet` module validates these fields with more precise messages.
    **_each(
        object,
        """
        maxPods podsPerCore evictionMaxPodGracePeriod imageGCHighThresholdPercent
        imageGCLowThresholdPercent systemReserved kubeReserved evictionHard evictionSoft
        evictionSoftGracePeriod evictionMinimumReclaim registerWithTaints
        """,
    ),
    staticPodURLHeader=dict[str, list[str]],
    tlsCurvePreferences=list[_Int32],
    featureGates=dict[str, bool],
    memoryThrottlingFactor=float,
    authentication=_AUTHENTICATION,
    authorization=_AUTHORIZATION,
    memorySwap=_group("MemorySwap", swapBehavior=str),
    crashLoopBackOff=_group("CrashLoopBackOff", maxContainerRestartPeriod=_Duration),
    shutdownGracePeriodByPodPriority=list[_SHUTDOWN],  # type: ignore[valid-type]
    reservedMemory=list[_RESERVED_MEMORY],  # type: ignore[valid-type]
    logging=_LOGGING,
    tracing=_group("Tracing", endpoint=str, samplingRatePerMillion=_Int32),
    userNamespaces=_group("UserNamespaces", idsPerPod=_Int64),
)


def invalid_fields(kubelet: Mapping[str, Any]) -> Iterator[str]:
    """Yield each field that the kubelet cannot parse, and the reason.

    A text begins with the path of the field, such as `.logging.format`; that of an unknown field
    names the path in quotes. Within each field of the top level, the validation ends at the first
    error other than an unknown field.
    """
    for name in sorted(kubelet):
        yield from _invalid_fields({name: kubelet[name]})


def _invalid_fields(kubelet: Any) -> Iterator[str]:
    while True:
        try:
            msgspec.convert(kubelet, _KUBELET)
        except msgspec.ValidationError as exc:
            what, _, where = str(exc).partition(" - at `$")
            path = where.rstrip("`")
            unknown = _UNKNOWN.match(what)
            if unknown is None:
                wanted = "Expected a duration such as 1m30s" if "matching regex" in what else what
                yield f"{path}: {wanted}"
                return
            full = f"{path}.{unknown[1]}".removeprefix(".")
            yield f': unknown field "{full[:_LONGEST]}", correct or remove it'
            kubelet = _without_field(kubelet, _STEP.findall(path), unknown[1])
        else:
            return


def _without_field(value: Any, path: Sequence[tuple[str, str]], name: str) -> Any:
    """Return a copy of a value without a field of the object at the path."""
    if not path:
        return {key: inner for key, inner in value.items() if key != name}
    (key, index), *rest = path
    if index:
        changed = list(value)
        changed[int(index)] = _without_field(value[int(index)], rest, name)
        return changed
    return {**value, key: _without_field(value[key], rest, name)}
