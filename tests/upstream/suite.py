"""Karpenter's regression suite as a program: what it holds, and one spec of it run."""

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
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.processes import binaries, owned
from testbed.progress import SILENCE, Progress

HERE = Path(__file__).parent
KARPENTER = "sigs.k8s.io/karpenter"
BINARY = "regression.test"
TITLE = "Regression"
"""How the suite calls itself; Ginkgo puts it before the name of each spec."""

LOOK_SECONDS = 0.2
"""How often the process of a spec is looked at."""

SPEC_MINUTES = 30
"""How long a spec may take before Ginkgo breaks it off; the longest waits 17 for one thing."""

SMALL = {
    "key": "karpenter.k8s.aws/instance-cpu",
    "operator": "In",
    "values": ["2"],
}
"""What the pool of the CapacityBuffer specs requires: they count nodes that hold one pod of one
CPU, and see to such nodes themselves where the provider is kwok."""

SLOW = re.compile(
    "registration timeout|never registers|never initialized|runaway|limits when provisioning"
    "|in order|grace period durations|concurrent changes"
)
"""Specs that wait for minutes; begun first, they do not hold up the end."""


COMPLAINT_LENGTH = 400
"""Gomega prints whole objects; what it complains of comes first, and the log has the rest."""


class State(StrEnum):
    """How a spec ended."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"
    """It fails, or is not run, and the reason is written down."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one spec."""

    spec: str
    state: State
    seconds: float
    why: str = ""


@cache
def toolset() -> binaries.Toolset:
    """Return the suite, compiled from Karpenter's module."""
    return binaries.Toolset(
        name=f"karpenter-suite-{binaries.pinned(HERE, KARPENTER)}",
        module=HERE,
        packages={BINARY: f"{KARPENTER}/test/suites/regression"},
        releases=[],
        # Some specs start a manager of their own, which would serve metrics on port 8080 of the
        # whole machine: of every region that runs here, and of Joiner.
        ldflags="-s -w -X sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress=0",
        are_tests=True,
    )


def binary(progress: Progress = SILENCE) -> Path:
    """Return the suite's program, compiled when need be."""
    return binaries.Supply(progress=progress).obtain(toolset()) / BINARY


def specs(program: Path, focus: str = "") -> list[str]:
    """List the suite's specs whose names match, those that wait longest first."""
    with tempfile.TemporaryDirectory(prefix="joiner-upstream-") as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [program, "--ginkgo.dry-run", f"--ginkgo.json-report={report}"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        names = [name_of(row) for row in reported(report) if row["LeafNodeType"] == "It"]
    matching = [name for name in names if re.search(focus, name)]
    return sorted(matching, key=lambda name: not SLOW.search(name))


def reported(report: Path) -> list[Mapping[str, Any]]:
    """Read a report of Ginkgo's: an entry for each spec, and for what is set up for all."""
    (suite,) = json.loads(report.read_bytes())
    entries: list[Mapping[str, Any]] = suite["SpecReports"] or []
    return entries


def name_of(report: Mapping[str, Any]) -> str:
    """Return a spec's name: the texts of its containers and its own."""
    return " ".join([*(report["ContainerHierarchyTexts"] or ()), report["LeafNodeText"]])


def focus_on(spec: str) -> str:
    """Return the pattern that matches this spec alone."""
    return f"^{re.escape(f'{TITLE} {spec}')}$"


def known(file: Path = HERE / "known.yaml") -> Mapping[str, str]:
    """Read what is known to fail: part of a spec's name → why."""
    return yaml.safe_load(file.read_text()) or {}


def reason(spec: str, reasons: Mapping[str, str]) -> str:
    """Return why a spec is known to fail; nothing when it is not."""
    return next((why for part, why in reasons.items() if part in spec), "")


def write_manifests(folder: Path, spec: str) -> Sequence[str]:
    """Write the class and the pool that a spec starts from; returns the flags that name them."""
    pool = yaml.safe_load((HERE / "nodepool.yaml").read_text())
    if spec.startswith("CapacityBuffer "):
        pool["spec"]["template"]["spec"]["requirements"].append(SMALL)
    written = folder / "nodepool.yaml"
    written.write_text(yaml.safe_dump(pool))
    return [f"--default-nodeclass={HERE / 'nodeclass.yaml'}", f"--default-nodepool={written}"]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs specs against the cluster of a kubeconfig; what they print goes to a folder."""

    program: Path
    kubeconfig: Path
    workplace: Path
    """Of the region: its processes end with it."""

    logs: Path
    is_over: threading.Event
    """Set when the spec under way is to be broken off."""

    def run(self, spec: str) -> Outcome:
        """Run one spec."""
        name = re.sub(r"\W+", "-", spec).strip("-")[:200]
        report = self.workplace / "report.json"
        report.unlink(missing_ok=True)
        process = owned.Process(
            name="suite",
            command=[
                str(self.program),
                *write_manifests(self.workplace, spec),
                f"--ginkgo.focus={focus_on(spec)}",
                f"--ginkgo.timeout={SPEC_MINUTES}m",
                "--ginkgo.vv",
                "--ginkgo.no-color",
                f"--ginkgo.json-report={report}",
            ],
            directory=self.workplace,
            environment={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            log=self.logs / f"{name}.log",
        )
        process.start()
        while process.is_alive and not self.is_over.wait(LOOK_SECONDS):
            pass
        process.stop()
        if not report.exists():
            words = owned.last_words(process.log, lines=3)
            return Outcome(spec, State.FAILED, 0.0, f"the suite told nothing: {words}")
        return outcome(spec, reported(report))


def outcome(spec: str, reports: Iterable[Mapping[str, Any]]) -> Outcome:
    """Find what a report says of the one spec that was run."""
    ran = [row for row in reports if row["State"] != "skipped"]
    seconds = sum(row["RunTime"] for row in ran if name_of(row) == spec) / 1e9
    failed = next((row for row in ran if row["State"] != "passed"), None)
    if failed is not None:
        return Outcome(spec, State.FAILED, seconds, _complaint(failed))
    if any(name_of(row) == spec for row in ran):
        return Outcome(spec, State.PASSED, seconds)
    return Outcome(spec, State.FAILED, seconds, "the suite did not run it")


def _complaint(report: Mapping[str, Any]) -> str:
    failure = report.get("Failure") or {}
    where = failure.get("Location") or {}
    place = f"{Path(where.get('FileName', '')).name}:{where.get('LineNumber', '')}"
    said = " ".join(str(failure.get("Message", report["State"])).split())
    return f"{place} {said}"[:COMPLAINT_LENGTH]
