"""Files that settings name are read at the start; errors name the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.manager.configuration import default_constraints
from controller.options import Options, OptionsError

DOCUMENT = """\
# as in the configuration of kube-scheduler
podTopologySpread:
  defaultConstraints:
  - maxSkew: 2
    topologyKey: zone
    whenUnsatisfiable: ScheduleAnyway
"""
INLINE = (
    "{podTopologySpread: {defaultConstraints: "
    "[{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}}"
)


def options(config: str) -> Options:
    return Options(cluster_name="c", scheduler_config=config)


def test_the_scheduler_config_is_a_file_or_inline(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(INLINE)

    (from_file,) = default_constraints(options(str(path)))
    (inline,) = default_constraints(options(INLINE))
    (document,) = default_constraints(options(DOCUMENT))

    assert from_file == inline == document
    assert (inline.max_skew, inline.topology_key) == (2, "zone")
    assert default_constraints(options("")) == ()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("/nowhere/scheduler.yaml", "No such file"),
        ("{podTopologySpread: {defaultConstraint: []}}", "defaultConstraint"),
        ("{podTopologySpread: [", "expected"),
        ("podTopologySpread:\n  defaultConstraint: []\n", "defaultConstraint"),
        ("podTopologySpread:\n- a: [", "expected"),
    ],
)
def test_an_invalid_scheduler_config_names_the_setting(config: str, why: str) -> None:
    with pytest.raises(OptionsError, match=f"SCHEDULER_CONFIG.*{why}"):
        default_constraints(options(config))
