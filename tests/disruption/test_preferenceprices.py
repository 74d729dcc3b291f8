"""Pod preferences, and the saving for which consolidation gives them up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.parity.worlds import HOSTNAME, pod
from controller.disruption.commands import Command, Decision
from controller.disruption.methods.order import confirm, decide
from controller.disruption.problem import EVICTIONS_FREE, DisruptionSettings
from controller.scheduling.settings import IGNORE, Settings
from tests.disruption.test_consolidation import going, pods, pool, problem, world

PRICE = "joiner.dev/preference-price"
WEB = {"matchLabels": {"app": "web"}}
APART = {
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {"topologyKey": HOSTNAME, "labelSelector": WEB},
                }
            ]
        }
    }
}
SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": WEB,
        }
    ]
}


def web(name: str, price: str | None = None, preference: Any = APART) -> dict[str, Any]:
    """Return a pod that would rather not share its node with another such pod."""
    replica = pod(name, cpu=400, memory=256, labels={"app": "web"}, **preference)
    if price is not None:
        replica["metadata"]["annotations"] = {PRICE: price}
    return replica


def apart(price: str | None = None, preference: Any = APART, **more: Any) -> dict[str, Any]:
    """Return two such pods on a node each, of which one would do; a node costs 0.1 $/h."""
    return world(
        ("a", "small", [web("web-0", price, preference)]),
        ("b", "small", [web("web-1", price, preference)]),
        **more,
    )


def decided(
    cluster: dict[str, Any],
    settings: DisruptionSettings = EVICTIONS_FREE,
    scheduling: Settings | None = None,
) -> Decision:
    asked = problem(cluster, settings)
    return decide(replace(asked, scheduling=scheduling or asked.scheduling))


def command(decision: Decision) -> Command:
    (only,) = decision.commands
    return only


@pytest.mark.parametrize("preference", [APART, SPREAD], ids=["anti-affinity", "spread"])
def test_without_a_price_preferences_of_pods_are_kept(preference: Any) -> None:
    assert not decided(apart(preference=preference)).commands


@pytest.mark.parametrize("preference", [APART, SPREAD], ids=["anti-affinity", "spread"])
def test_a_preference_is_dropped_for_a_saving_above_its_price(preference: Any) -> None:
    removal = command(decided(apart("0.08", preference)))

    assert len(removal.names) == removal.conceding == 1
    assert removal.saving == pytest.approx(0.1)
    assert "1 pod will run without preferences" in removal.why


def test_a_preference_is_kept_if_the_saving_is_below_its_price() -> None:
    assert not decided(apart("0.11")).commands


def test_the_preference_price_is_added_to_the_eviction_cost() -> None:
    settings = DisruptionSettings(eviction_price=0.04)  # spread over two hours

    assert decided(apart("0.07"), settings).commands
    assert not decided(apart("0.09"), settings).commands


@pytest.mark.parametrize("price", ["", "much", "nan", "inf", "-1"])
def test_an_invalid_preference_price_keeps_the_preference(price: str) -> None:
    assert not decided(apart(price)).commands


def test_a_nodepool_may_set_the_preference_price_of_its_pods() -> None:
    cheap = pool()
    cheap["metadata"]["annotations"] = {PRICE: "0.01"}

    assert decided(apart(pools=[cheap])).commands
    assert not decided(apart("0.11", pools=[cheap])).commands, "the pod's own word counts"


def test_ignored_preferences_have_no_price() -> None:
    removal = command(decided(apart("0.11"), scheduling=Settings(preference_policy=IGNORE)))

    assert not removal.conceding


def test_no_preference_is_dropped_if_the_same_is_saved_without() -> None:
    cluster = world(
        ("a", "small", [web("web-0", "0.01")]),
        ("b", "small", [web("web-1", "0.01"), *pods("b", 3)]),
        ("c", "small", pods("c", 3)),
    )

    removal = command(decided(cluster))

    assert going(decided(cluster)) == {"a"}
    assert removal.moves == {"c": ("default/web-0",)}
    assert not removal.conceding


def test_a_required_term_is_never_dropped() -> None:
    needed: dict[str, Any] = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": HOSTNAME, "labelSelector": WEB}
                ]
            }
        }
    }
    assert not decided(apart("0", needed | SPREAD)).commands


def test_a_command_that_drops_a_preference_is_confirmed_only_while_its_price_is_the_same() -> None:
    decision = decided(apart("0.08"))

    assert confirm(problem(apart("0.08")), decision).commands == decision.commands
    assert not confirm(problem(apart("0.11")), decision).commands
    assert not confirm(problem(apart()), decision).commands


def test_commands_name_moved_pods_with_their_original_spec() -> None:
    asked = problem(apart("0.08"))
    here = {each.key: each for each in asked.snapshot.pods}

    (candidate,) = command(decide(asked)).candidates

    assert [here[each.key] for each in candidate.pods] == list(candidate.pods)
