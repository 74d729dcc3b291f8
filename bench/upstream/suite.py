"""Karpenter's black-box suites as programs: list their specs, and run one of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from testbed import environment
from testbed.processes import binaries, owned
from testbed.progress import SILENCE, Progress

HERE = Path(__file__).parent
REPAIRED = "AcceleratedHardwareReady=False/NvidiaXID79Error"
REBOOTED = "AcceleratedHardwareReady=False/NvidiaXID46Error"
GATES = (
    "NodeRepair=true",
    "SpotToSpotConsolidation=true",
    "NodeOverlay=true",
    "StaticCapacity=true",
    "CapacityBuffer=true",
)
"""Feature gates that the suites of both sources expect to be on."""


@dataclass(frozen=True, slots=True)
class Source:
    """The suites of one Go module."""

    name: str
    module: Path
    """Folder of the go.mod that pins the suites' module."""

    dependency: str
    """Path of the suites' Go module."""

    suites: Mapping[str, str]
    """Title of a suite → its folder. A spec's name begins with the title: "Disruption …"."""

    settings: Mapping[str, str]
    """Settings of the controller that the suites expect."""

    stack: Mapping[str, str]
    """Settings of the stack that the suites expect."""

    takes_manifests: bool
    """Whether the suites take their NodePool, node class and node conditions as flags."""

    system_node_count: int = 2
    """The number of nodes that exist from the start, each in another zone."""


CORE = Source(
    name="karpenter-suites",
    module=HERE,
    dependency="sigs.k8s.io/karpenter",
    suites={"Regression": "regression", "Disruption": "disruption"},
    settings={"FEATURE_GATES": ",".join(GATES), "AWS_FEATURE_GATES": "RebootForRepair=true"},
    stack={},
    takes_manifests=True,
)
PROVIDER = Source(
    name="karpenter-provider-suites",
    module=HERE / "provider",
    dependency="github.com/aws/karpenter-provider-aws",
    suites={
        "Consolidation": "consolidation",
        "Drift": "drift",
        "Integration": "integration",
        "Interruption": "interruption",
        "LegacyRepair": "legacyrepair",
        "NodeClaim": "nodeclaim",
        "Repair": "repair",
        "SchedulingBestEffort": "scheduling-besteffort",
        "SchedulingStrict": "scheduling-strict",
    },
    settings={
        "FEATURE_GATES": ",".join(
            (*GATES, "TerminateFirstDrift=true", "TerminateFirstRepair=true")
        ),
        "AWS_FEATURE_GATES": "NodeClassCEL=true,RebootForRepair=true",
        "ENABLE_ZONAL_SHIFT": "true",
        # The pods of a spec are young, and the price of their eviction would exceed small savings.
        "DISRUPTION_EVICTION_PRICE": "0",
    },
    stack={
        # Specs that deny the controller a permission find its role in the service account.
        "identity": "irsa",
        "oidcProvider": "existing",
    },
    takes_manifests=False,
    # Specs of zonal shifts need a node in each zone, also in the one without traffic.
    system_node_count=3,
)
"""The suites of Karpenter's AWS provider in which at least one spec needs no real instances.

They read the cluster's name, its endpoint and the interruption queue from the environment, and
call AWS themselves: here, the test cloud.
"""

CONDITIONS = (f"--repair-condition={REPAIRED}", f"--reboot-condition={REBOOTED}")
"""The node conditions that specs set to have a node repaired or rebooted.

Their toleration is 10 minutes after the node's creation. That of other conditions is 30 minutes,
and the suites wait for 15.
"""

POLL_SECONDS = 0.2
"""Interval at which the process of a spec is polled."""

SPEC_MINUTES = 45
"""Minutes after which Ginkgo aborts a spec; the longest single wait is 35."""

SMALL = {
    "key": "karpenter.k8s.aws/instance-cpu",
    "operator": "In",
    "values": ["2"],
}
"""A requirement that the default NodePool gets for the CapacityBuffer specs.

Those specs count nodes that hold one pod of one CPU, and set up such nodes themselves if the
provider is kwok.
"""

SLOW = re.compile(
    "Repair|Reboot|repairing|registration timeout|never registers|never initialized|runaway"
    "|limits when provisioning|in order|grace period durations|concurrent changes"
    "|garbage collect an Instance"
)
"""Specs that wait for minutes. They start first so that they do not delay the end."""


COMPLAINT_LENGTH = 400
"""Maximum characters of a failure message.

Gomega prints whole objects after the message itself, and the log has all of it.
"""


class State(StrEnum):
    """Result of a spec."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"
    """The spec fails or is skipped, and the reason is recorded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one spec."""

    spec: str
    state: State
    seconds: float
    why: str = ""


def toolset(source: Source = CORE) -> binaries.Toolset:
    """Return the set of the suites' programs, compiled from Karpenter's module."""
    folder = f"{source.dependency}/test/suites"
    return binaries.Toolset(
        name=f"{source.name}-{binaries.pinned_version(source.module, source.dependency)}",
        module=source.module,
        packages={f"{suite}.test": f"{folder}/{suite}" for suite in source.suites.values()},
        releases=[],
        # Some specs start their own manager, which would serve metrics on port 8080 of the machine
        # that all regions and Joiner share.
        ldflags="-s -w -X sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress=0",
        are_tests=True,
    )


def programs(source: Source = CORE, progress: Progress = SILENCE) -> Path:
    """Return the folder with the suites' programs, which are compiled if necessary."""
    return binaries.Supply(progress=progress).obtain(toolset(source))


def sources(source: Source = CORE, progress: Progress = SILENCE) -> Path:
    """Return the folder of the suites' Go packages, which is downloaded if necessary."""
    go = binaries.find_go(environment.cache_directory(), source.module, progress=progress)
    answer = subprocess.run(
        [go, "mod", "download", "-json", source.dependency],
        cwd=source.module,
        env={**os.environ, **binaries.PINNED},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Path(json.loads(answer.stdout)["Dir"]) / "test" / "suites"


def suite_of(spec: str, source: Source = CORE) -> str:
    """Return the name of the folder of the suite that a spec belongs to."""
    return source.suites[spec.split(maxsplit=1)[0]]


def program_of(folder: Path, spec: str, source: Source = CORE) -> Path:
    """Return the path of the program of a spec's suite; `folder` is the result of `programs`."""
    return folder / f"{suite_of(spec, source)}.test"


def specs(folder: Path, focus: str = "", source: Source = CORE) -> list[str]:
    """Return the names of the specs that match the regular expression `focus`.

    Those with the longest waits come first. `folder` is the result of `programs`.
    """
    names: list[str] = []
    with tempfile.TemporaryDirectory(prefix="joiner-upstream-") as scratch:
        report = Path(scratch) / "report.json"
        for suite in source.suites.values():
            subprocess.run(
                [
                    folder / f"{suite}.test",
                    "--ginkgo.dry-run",
                    f"--ginkgo.json-report={report}",
                ],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            rows = report_entries(report)
            names += [row["name"] for row in rows if row["LeafNodeType"] == "It"]
    matching = [name for name in names if re.search(focus, name)]
    return sorted(matching, key=lambda name: not SLOW.search(name))


def report_entries(report: Path) -> list[Mapping[str, Any]]:
    """Return the entries of a Ginkgo report: one for each spec, and those of the suite's setup.

    The `name` of an entry consists of the suite's title and the texts of its containers and spec.
    """
    (suite,) = json.loads(report.read_bytes())
    title = suite["SuiteDescription"]
    return [{**row, "name": " ".join([title, *_texts(row)])} for row in suite["SpecReports"] or ()]


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [*(row["ContainerHierarchyTexts"] or ()), row["LeafNodeText"]]


def focus_on(spec: str) -> str:
    """Return the regular expression that matches only this spec."""
    return f"^{re.escape(spec)}$"


def known_failures(source: Source = CORE) -> Mapping[str, str]:
    """Return why specs are known to fail, by regular expression; it matches a part of their names.

    Empty if there are none.
    """
    return yaml.safe_load((source.module / "known.yaml").read_text()) or {}


def reason(spec: str, reasons: Mapping[str, str]) -> str:
    """Return why a spec is known to fail, or an empty string; `reasons` as in `known_failures`."""
    return next((why for part, why in reasons.items() if re.search(part, spec)), "")


def write_manifests(folder: Path, spec: str) -> Sequence[str]:
    """Write a spec's default NodePool; return the flags that name it and the node class."""
    pool = yaml.safe_load((HERE / "nodepool.yaml").read_text())
    if " CapacityBuffer " in spec:
        pool["spec"]["template"]["spec"]["requirements"].append(SMALL)
    written = folder / "nodepool.yaml"
    written.write_text(yaml.safe_dump(pool))
    return [f"--default-nodeclass={HERE / 'nodeclass.yaml'}", f"--default-nodepool={written}"]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs specs against the cluster of a kubeconfig, and writes their output to a folder."""

    source: Source
    programs: Path
    """Folder of the suites' programs."""

    sources: Path
    """Folder of the suites' packages. A suite reads its test data relative to its package."""

    environment: Mapping[str, str]
    """Variables that point the suites to the region's cluster and to its cloud."""

    workplace: Path
    """Directory of the region; the region's processes end with it."""

    logs: Path
    is_over: threading.Event
    """Set when the spec in progress is to be aborted."""

    def run(self, spec: str) -> Outcome:
        """Run one spec and return its outcome."""
        name = re.sub(r"\W+", "-", spec).strip("-")[:200]
        report = self.workplace / "report.json"
        report.unlink(missing_ok=True)
        process = owned.Process(
            name="suite",
            command=[
                str(program_of(self.programs, spec, self.source)),
                *(self._manifests(spec) if self.source.takes_manifests else ()),
                f"--ginkgo.focus={focus_on(spec)}",
                f"--ginkgo.timeout={SPEC_MINUTES}m",
                "--ginkgo.vv",
                "--ginkgo.no-color",
                f"--ginkgo.json-report={report}",
            ],
            directory=self.workplace,
            working_directory=self.sources / suite_of(spec, self.source),
            environment={**os.environ, **self.environment},
            log=self.logs / f"{name}.log",
        )
        process.start()
        while process.is_alive and not self.is_over.wait(POLL_SECONDS):
            pass
        process.stop()
        if not report.exists():
            words = owned.log_tail(process.log, lines=3)
            return Outcome(spec, State.FAILED, 0.0, f"the suite wrote no report: {words}")
        return outcome(spec, report_entries(report))

    def _manifests(self, spec: str) -> Sequence[str]:
        return [*CONDITIONS, *write_manifests(self.workplace, spec)]


def outcome(spec: str, reports: Iterable[Mapping[str, Any]]) -> Outcome:
    """Return the outcome of a spec; `reports` are the entries of the report of its run."""
    ran = [row for row in reports if row["State"] != "skipped"]
    seconds = sum(row["RunTime"] for row in ran if row["name"] == spec) / 1e9
    failed = next((row for row in ran if _has_failed(row)), None)
    if failed is not None:
        return Outcome(spec, State.FAILED, seconds, _complaint(failed))
    if any(row["name"] == spec for row in ran):
        return Outcome(spec, State.PASSED, seconds)
    return Outcome(spec, State.FAILED, seconds, "the suite did not run it")


def _has_failed(report: Mapping[str, Any]) -> bool:
    """Return whether an entry of a report has failed by itself.

    After its last spec, the container of the provider's scheduling specs expects that its specs
    together used every well-known label. A spec that runs alone fails there, and has passed before.
    """
    node = (report.get("Failure") or {}).get("FailureNodeType")
    is_alone = node == "AfterAll" and "Scheduling" in (report["ContainerHierarchyTexts"] or ())
    return report["State"] != "passed" and not is_alone


def _complaint(report: Mapping[str, Any]) -> str:
    failure = report.get("Failure") or {}
    where = failure.get("Location") or {}
    place = f"{Path(where.get('FileName', '')).name}:{where.get('LineNumber', '')}"
    said = " ".join(str(failure.get("Message", report["State"])).split())
    return f"{place} {said}"[:COMPLAINT_LENGTH]
