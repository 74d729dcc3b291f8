"""Pod preferences, and the saving for which consolidation gives them up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.parity.worlds import HOSTNAME, pod
from controller.disruption.commands import Command, Decision
from controller.disruption.methods import confirm, decide
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
def test_what_pods_prefer_they_keep_where_nobody_has_put_a_price_to_it(preference: Any) -> None:
    assert not decided(apart(preference=preference)).commands


@pytest.mark.parametrize("preference", [APART, SPREAD], ids=["anti-affinity", "spread"])
def test_what_pods_prefer_goes_for_a_saving_above_its_price(preference: Any) -> None:
    removal = command(decided(apart("0.08", preference)))

    assert len(removal.names) == removal.conceding == 1
    assert removal.saving == pytest.approx(0.1)
    assert "1 pod will run without preferences" in removal.why


def test_a_saving_below_the_price_leaves_pods_what_they_prefer() -> None:
    assert not decided(apart("0.11")).commands


def test_a_price_comes_on_top_of_what_moving_costs() -> None:
    calm = DisruptionSettings(eviction_price=0.04)  # spread over two hours

    assert decided(apart("0.07"), calm).commands
    assert not decided(apart("0.09"), calm).commands


@pytest.mark.parametrize("price", ["", "much", "nan", "inf", "-1"])
def test_a_price_that_is_no_amount_leaves_pods_what_they_prefer(price: str) -> None:
    assert not decided(apart(price)).commands


def test_a_pool_may_price_what_the_pods_on_its_nodes_prefer() -> None:
    cheap = pool()
    cheap["metadata"]["annotations"] = {PRICE: "0.01"}

    assert decided(apart(pools=[cheap])).commands
    assert not decided(apart("0.11", pools=[cheap])).commands, "the pod's own word counts"


def test_where_preferences_are_ignored_no_price_is_asked() -> None:
    removal = command(decided(apart("0.11"), scheduling=Settings(preference_policy=IGNORE)))

    assert not removal.conceding


def test_nothing_is_given_up_where_the_same_is_saved_without() -> None:
    cluster = world(
        ("a", "small", [web("web-0", "0.01")]),
        ("b", "small", [web("web-1", "0.01"), *pods("b", 3)]),
        ("c", "small", pods("c", 3)),
    )

    removal = command(decided(cluster))

    assert going(decided(cluster)) == {"a"}
    assert removal.moves == {"c": ("default/web-0",)}
    assert not removal.conceding


def test_what_is_needed_is_never_given_up() -> None:
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


def test_a_concession_stands_as_long_as_its_price_does() -> None:
    decision = decided(apart("0.08"))

    assert confirm(problem(apart("0.08")), decision).commands == decision.commands
    assert not confirm(problem(apart("0.11")), decision).commands
    assert not confirm(problem(apart()), decision).commands


def test_pods_that_move_are_named_as_they_are() -> None:
    asked = problem(apart("0.08"))
    here = {each.key: each for each in asked.snapshot.pods}

    (candidate,) = command(decide(asked)).candidates

    assert [here[each.key] for each in candidate.pods] == list(candidate.pods)
