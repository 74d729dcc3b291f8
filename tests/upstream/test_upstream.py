"""How `make upstream` reads the suite's reports; these tests do not run the suite."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from bench.upstream import __main__ as upstream
from bench.upstream import suite
from bench.upstream.suite import Outcome, Source, State

SPEC = "Disruption Drift NodePool Drift Taints"


def make_report(text: str, state: str = "passed", **more: Any) -> dict[str, Any]:
    *containers, leaf = text.split(" / ")
    return {
        "name": " ".join(["Disruption", *containers, leaf]),
        "ContainerHierarchyTexts": containers or None,
        "LeafNodeText": leaf,
        "LeafNodeType": "It",
        "State": state,
        "RunTime": 12_000_000_000,
        **more,
    }


def test_the_executed_spec_is_reported_with_its_duration(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    specs = [
        make_report("Drift / NodePool Drift / Labels", "skipped", RunTime=0),
        make_report("Drift / NodePool Drift / Taints"),
        {"ContainerHierarchyTexts": None, "LeafNodeText": "", "State": "passed", "RunTime": 5},
    ]
    report.write_text(json.dumps([{"SuiteDescription": "Disruption", "SpecReports": specs}]))

    assert suite.outcome(SPEC, suite.report_entries(report)) == Outcome(SPEC, State.PASSED, 12.0)


def test_a_failure_is_reported_with_location_and_message() -> None:
    failure = {
        "Message": "Timed out after 900s.\nExpected\n    <int>: 1\nto equal\n    <int>: 2",
        "Location": {"FileName": "sigs.k8s.io/karpenter/drift_test.go", "LineNumber": 291},
    }
    reports = [make_report("Drift / NodePool Drift / Taints", "failed", Failure=failure)]

    outcome = suite.outcome(SPEC, reports)

    assert outcome.state is State.FAILED
    assert outcome.why == (
        "drift_test.go:291 Timed out after 900s. Expected <int>: 1 to equal <int>: 2"
    )


def test_a_failure_before_the_spec_counts_as_its_failure() -> None:
    before = make_report("", "panicked", Failure={"Message": "no cluster"})
    reports = [before, make_report("Drift / NodePool Drift / Taints", "skipped", RunTime=0)]

    outcome = suite.outcome(SPEC, reports)

    assert (outcome.state, outcome.why) == (State.FAILED, ": no cluster")


@pytest.mark.parametrize(
    ("node", "state"), [("AfterAll", State.PASSED), ("It", State.FAILED)], ids=["after", "itself"]
)
def test_a_scheduling_spec_that_only_misses_the_others_has_passed(node: str, state: State) -> None:
    failure = {"Message": "to contain elements", "FailureNodeType": node}
    report = make_report("Scheduling / should provision", "failed", Failure=failure)

    assert suite.outcome(report["name"], [report]).state is state


def test_a_spec_missing_from_the_report_has_not_passed() -> None:
    assert suite.outcome(SPEC, []).state is State.FAILED


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        pytest.param(SPEC, True, id="itself"),
        pytest.param("Disruption Drift NodePool Drift Start-up Taints", False, id="ends like it"),
        pytest.param(f"Regression StaticCapacity {SPEC}", False, id="holds it"),
    ],
)
def test_a_spec_is_run_alone(name: str, matches: bool) -> None:
    assert bool(re.search(suite.focus_on(SPEC), name)) is matches


def test_the_title_of_a_spec_names_the_program_that_runs_it(tmp_path: Path) -> None:
    assert suite.program_of(tmp_path, SPEC) == tmp_path / "disruption.test"


def test_specs_of_the_provider_run_in_programs_named_by_their_folders(tmp_path: Path) -> None:
    spec = "SchedulingStrict Scheduling should provision"

    assert suite.program_of(tmp_path, spec, suite.PROVIDER) == tmp_path / "scheduling-strict.test"
    assert set(suite.toolset(suite.PROVIDER).packages) >= {"scheduling-strict.test"}


@pytest.mark.parametrize(
    ("spec", "is_small"),
    [("Regression CapacityBuffer Disruption should stay", True), (SPEC, False)],
)
def test_capacity_buffer_specs_get_nodes_with_two_cpus(
    tmp_path: Path, spec: str, is_small: bool
) -> None:
    flags = dict(flag.split("=", 1) for flag in suite.write_manifests(tmp_path, spec))

    pool = yaml.safe_load(Path(flags["--default-nodepool"]).read_text())
    assert (suite.SMALL in pool["spec"]["template"]["spec"]["requirements"]) is is_small
    assert yaml.safe_load(Path(flags["--default-nodeclass"]).read_text())["kind"] == "EC2NodeClass"


def test_only_a_failure_with_a_recorded_reason_is_known() -> None:
    reasons = {"Repair Policy": "not there yet"}
    failed = Outcome("Integration Repair Policy should repair", State.FAILED, 900.0, "timed out")
    passed = Outcome("Integration Repair Policy should wait", State.PASSED, 3.0)
    another = Outcome(SPEC, State.FAILED, 7.0, "timed out")

    assert upstream.with_known_reason(failed, reasons).state is State.KNOWN
    assert upstream.with_known_reason(failed, reasons).why == "not there yet"
    assert upstream.with_known_reason(passed, reasons) == passed
    assert upstream.with_known_reason(another, reasons) == another


def test_a_recorded_reason_can_exclude_longer_names() -> None:
    reasons = {"AMIFamily is AL2$": "there is no AL2"}

    assert suite.reason("Kubelet when the AMIFamily is AL2", reasons) == "there is no AL2"
    assert suite.reason("Kubelet when the AMIFamily is AL2023", reasons) == ""


def test_the_table_has_every_spec_and_the_totals() -> None:
    outcomes = [
        Outcome("b fails", State.FAILED, 61.4, "drift_test.go:1 too few nodes"),
        Outcome("a passes", State.PASSED, 3.0),
        Outcome("c is known", State.KNOWN, 0.0, "nobody repairs nodes"),
    ]
    printed = io.StringIO()

    Console(file=printed, width=120).print(upstream.table(outcomes, 90.0))

    lines = [line.split() for line in printed.getvalue().splitlines()]
    assert ["a", "passes", "✓", "passed", "3"] in lines
    assert ["b", "fails", "✗", "failed", "61", "drift_test.go:1", "too", "few", "nodes"] in lines
    assert ["c", "is", "known", "–", "known", "nobody", "repairs", "nodes"] in lines
    assert "3 specs: 1 passed, 1 failed, 1 known; 1.5 minutes" in printed.getvalue()


@pytest.mark.parametrize("source", [suite.CORE, suite.PROVIDER], ids=lambda source: source.name)
def test_every_recorded_reason_has_an_explanation(source: Source) -> None:
    assert all(why and part for part, why in suite.known_failures(source).items())
