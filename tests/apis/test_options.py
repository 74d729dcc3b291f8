"""Settings: sources, validation, and how they reach the controller."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller import manual, options
from controller.__main__ import main
from controller.apis.karpenter import durations
from controller.options import (
    SETTINGS,
    AWSFeatureGates,
    FeatureGates,
    Options,
    OptionsError,
    ignored_gates,
    misspelt_settings,
    to_environment,
)

NAMED = {"CLUSTER_NAME": "joiner"}


def test_unset_options_have_the_default_that_karpenter_documents() -> None:
    options = Options.parse([], NAMED)

    assert options == Options(cluster_name="joiner")
    assert options.batch_idle_duration == timedelta(seconds=1)
    assert options.batch_max_duration == timedelta(seconds=10)
    assert options.feature_gates == FeatureGates(reserved_capacity=True)
    assert options.lease_namespace == "kube-system"


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    environ = NAMED | {"LOG_LEVEL": "error", "METRICS_PORT": "9000"}

    options = Options.parse(["--log-level=debug", "--reserved-enis", "2"], environ)

    assert options.log_level == "debug"
    assert options.metrics_port == 9000
    assert options.reserved_enis == 2


def test_a_switch_needs_no_value() -> None:
    assert Options.parse(["--isolated-vpc", "--cluster-name", "x"], {}).isolated_vpc


def test_an_empty_variable_means_the_default() -> None:
    assert Options.parse([], NAMED | {"CLUSTER_ENDPOINT": "", "METRICS_PORT": ""}).metrics_port


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("1m30s", 90), ("0.5s", 0.5), ("250ms", 0.25), ("1h", 3600)]
)
def test_durations_are_written_as_in_go(text: str, seconds: float) -> None:
    options = Options.parse([], NAMED | {"BATCH_MAX_DURATION": "2h", "BATCH_IDLE_DURATION": text})

    assert options.batch_idle_duration == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["99999999h", "9999999999999h", "9" * 400 + "s"])
def test_a_duration_beyond_gos_range_can_still_be_added_to_a_time(text: str) -> None:
    forever = durations.parse_finite(text)

    assert forever > timedelta(days=290 * 365)
    assert datetime(2026, 11, 22, tzinfo=UTC) + forever > datetime(2300, 1, 1, tzinfo=UTC)
    assert datetime(2026, 11, 22, tzinfo=UTC) - forever < datetime(1750, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["1", "1d", "s", "-1s", "1h 1m", ""])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        durations.parse(text)


def test_gates_left_out_keep_their_defaults() -> None:
    gates = Options.parse([], NAMED | {"FEATURE_GATES": "NodeRepair=true, NodeOverlay=True"})

    assert gates.feature_gates == FeatureGates(node_repair=True, node_overlay=True)


def test_unknown_gates_are_ignored_as_in_karpenter_and_each_is_named() -> None:
    given = {
        "FEATURE_GATES": "GateOfLater=false,NodeRepiar=true,NodeOverlay=true",
        "AWS_FEATURE_GATES": "AnotherOfLater=true",
    }

    options = Options.parse([], NAMED | given)

    assert options.feature_gates == FeatureGates(node_overlay=True)
    assert ignored_gates([], given) == [
        "FEATURE_GATES: unknown feature gate GateOfLater is ignored",
        "FEATURE_GATES: unknown feature gate NodeRepiar is ignored; did you mean NodeRepair?",
        "AWS_FEATURE_GATES: unknown feature gate AnotherOfLater is ignored",
    ]
    assert ignored_gates(["--feature-gates", "NodeRepair=true"], NAMED | given) == [
        "AWS_FEATURE_GATES: unknown feature gate AnotherOfLater is ignored"
    ]


def test_the_defaults_of_karpenters_chart_are_accepted_without_a_warning() -> None:
    chart = {
        "FEATURE_GATES": "NodeRepair=false,ReservedCapacity=true,SpotToSpotConsolidation=false,"
        "NodeOverlay=false,StaticCapacity=false,CapacityBuffer=false,TerminateFirstDrift=false,"
        "TerminateFirstRepair=false,PodDeletionCostManagement=false",
        "AWS_FEATURE_GATES": "NodeClassCEL=false,DRANVIDIAGPU=false,DRAEFA=false,"
        "RebootForRepair=false",
    }

    assert Options.parse([], NAMED | chart) == Options.parse([], NAMED)
    assert ignored_gates([], chart) == []


def test_a_variable_with_nearly_the_name_of_a_setting_is_named_in_a_warning() -> None:
    usual = "AWS_REGION AWS_ROLE_ARN CLUSTER_NAME KARPENTER_SERVICE_HOST KARPENTER_SERVICE_PORT"
    given = dict.fromkeys(usual.split(), "x") | {"BATCH_IDLE_DURATON": "3s", "FEATURE_GATE": ""}

    assert misspelt_settings(given) == [
        "BATCH_IDLE_DURATON is not a setting and is ignored; did you mean BATCH_IDLE_DURATION?",
        "FEATURE_GATE is not a setting and is ignored; did you mean FEATURE_GATES?",
    ]


def test_a_gate_without_effect_is_named_in_a_warning() -> None:
    given = {"FEATURE_GATES": "NodeRepair=true", "AWS_FEATURE_GATES": "DRAEFA=true"}

    assert ignored_gates([], given) == ["AWS_FEATURE_GATES: DRAEFA needs IGNORE_DRA_REQUESTS=false"]
    assert ignored_gates(["--ignore-dra-requests=false"], given) == []


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("CLUSTER_NAME", "", "name of the EKS cluster"),
        ("METRICS_PORT", "http", "a whole number"),
        ("METRICS_PORT", "70000", "at most 65535"),
        ("VM_MEMORY_OVERHEAD_PERCENT", "-0.1", "at least 0"),
        ("VM_MEMORY_OVERHEAD_PERCENT", "nan", "at least 0"),
        ("AMI_REFRESH_INTERVAL", "30s", "at least 1m"),
        ("BATCH_IDLE_DURATION", "soon", "1m30s"),
        ("BATCH_IDLE_DURATION", "11s", "BATCH_IDLE_DURATION"),
        ("PREFERENCE_POLICY", "respect", "Respect or Ignore"),
        ("MIN_VALUES_POLICY", "None", "Strict or BestEffort"),
        ("LOG_LEVEL", "warn", "debug or info or error"),
        ("ISOLATED_VPC", "maybe", "true or false"),
        ("FEATURE_GATES", "NodeRepair=perhaps", "NodeRepair"),
        ("FEATURE_GATES", "Drift=perhaps", "NodeRepair"),
        ("AWS_FEATURE_GATES", "NodeClassCEL", "NodeClassCEL=true"),
    ],
)
def test_an_invalid_value_is_named_with_the_allowed_ones(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(OptionsError, match=re.escape(allowed)) as refused:
        Options.parse([], NAMED | {key: value})

    assert allowed in refused.value.allowed
    assert value in refused.value.value or refused.value.key == "BATCH_MAX_DURATION"


@pytest.mark.parametrize("argument", ["--colour=red", "run", "--log-level"])
def test_a_flag_without_a_value_is_refused(argument: str) -> None:
    with pytest.raises(OptionsError, match=argument):
        Options.parse([argument], NAMED)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["run", "--cluster-nam", "c"], "did you mean --cluster-name?"),
        (["run", "--cluster-nam=c"], "did you mean --cluster-name?"),
        (["run", "--colour=red"], "`joiner run --help` lists"),
        (["sovle", "world.json"], "unknown command sovle; did you mean solve?"),
        (["Explain"], "did you mean explain?"),
    ],
)
def test_a_mistyped_command_or_flag_is_answered_with_the_most_similar_one(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed, {}) == 2

    printed = capsys.readouterr().err
    assert meant in printed
    assert len(printed.splitlines()[0]) < 100


def test_options_survive_a_round_trip_through_the_environment() -> None:
    options = Options(
        cluster_name="joiner",
        batch_idle_duration=timedelta(milliseconds=1500),
        isolated_vpc=True,
        ignore_dra_requests=False,
        vm_memory_overhead_percent=0,
        feature_gates=FeatureGates(node_repair=True, reserved_capacity=False),
        log_output_paths=("stdout", "/var/log/joiner.log"),
    )

    written = to_environment(options)

    assert Options.parse([], written) == options
    assert set(written) == {
        "CLUSTER_NAME",
        "BATCH_IDLE_DURATION",
        "ISOLATED_VPC",
        "IGNORE_DRA_REQUESTS",
        "VM_MEMORY_OVERHEAD_PERCENT",
        "FEATURE_GATES",
        "LOG_OUTPUT_PATHS",
    }


def test_every_setting_has_its_own_flag_and_variable() -> None:
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.flag.replace("-", "_").upper() == setting.variable for setting in SETTINGS)


def test_the_manual_describes_every_setting_and_its_default() -> None:
    page = manual.page()

    for setting in SETTINGS:
        assert f"  --{setting.flag}, {setting.variable} (" in page
    assert "--cluster-name, CLUSTER_NAME (required)" in page
    assert "--batch-idle-duration, BATCH_IDLE_DURATION (default 1s)\n      How long" in page


def test_asking_for_help_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"], {}) == 0
    assert "--metrics-port, METRICS_PORT (default 8080)" in capsys.readouterr().out


@pytest.mark.process
def test_help_piped_into_a_closed_reader_prints_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "controller", "run", "--help"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)

    assert (ended.returncode, ended.stderr) == (141, b"")


def test_every_feature_gate_changes_something() -> None:
    package = Path(options.__file__).parent
    read = "".join(p.read_text() for p in package.rglob("*.py") if p.name != "options.py")
    gates = [*dataclasses.fields(FeatureGates), *dataclasses.fields(AWSFeatureGates)]

    for gate in gates:
        assert re.search(rf"\.{gate.name}\b", read), gate.name
