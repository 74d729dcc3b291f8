"""No instance type of a NodeClaim has fewer devices than its pods were allocated."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.apis import labels
from controller.apis.kubernetes.devices import ResourceClaim
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.results import Results
from tests.builders import make_node, make_nodepool, make_pods, make_type, spread
from tests.scheduling.devices import (
    DRIVER,
    PLAIN,
    device,
    make_slice,
    replicas,
    request,
    solve,
    with_devices,
)

MODELS = ("a100", "h100")
ANY = "any"

cards = st.fixed_dictionaries({model: st.integers(0, 4) for model in MODELS})
asks = st.tuples(st.integers(1, 5), st.sampled_from((*MODELS, ANY)), st.integers(1, 3))


def hardware(counts: dict[str, int]) -> list[dict[str, object]]:
    """This number of devices of each model."""
    return [
        device(f"{model}-{n}", attributes={"model": model})
        for model, count in counts.items()
        for n in range(count)
    ]


def holds(asked: Counter[str], counts: dict[str, int]) -> bool:
    """Whether devices suffice: each model for its own pods, and all for the others."""
    return sum(asked.values()) <= sum(counts.values()) and all(
        asked[model] <= counts[model] for model in MODELS
    )


def asked_by(keys: tuple[str, ...], wants: dict[str, tuple[str, int]]) -> Counter[str]:
    asked: Counter[str] = Counter()
    for key in keys:
        model, count = wants.get(key, (ANY, 0))
        asked[model] += count
    return asked


@given(
    kinds=st.lists(st.tuples(cards, st.integers(1, 9)), min_size=1, max_size=4),
    groups=st.lists(asks, min_size=1, max_size=4),
    there=cards,
    plain=st.integers(0, 6),
    spreads=st.booleans(),
    limited=st.booleans(),
)
@settings(max_examples=60)
def test_every_type_of_a_claim_has_the_devices_of_its_pods(
    kinds: list[tuple[dict[str, int], int]],
    groups: list[tuple[int, str, int]],
    there: dict[str, int],
    plain: int,
    spreads: bool,
    limited: bool,
) -> None:
    counts = {f"t-{n}": held for n, (held, _) in enumerate(kinds)}
    types = [
        with_devices(make_type(f"t-{n}", cpu="16", price=float(price)), hardware(held))
        for n, (held, price) in enumerate(kinds)
    ]
    pods: list[Pod] = make_pods(plain)
    claims: list[ResourceClaim] = []
    wants: dict[str, tuple[str, int]] = {}
    for number, (many, model, count) in enumerate(groups):
        where = "" if model == ANY else f"device.attributes['{DRIVER}'].model == '{model}'"
        own = {"app": f"g{number}"}
        rules = [spread(own)] if spreads else []
        made, asked = replicas(
            many, request(count, where=where), name=f"g{number}", labels=own, spreads=rules
        )
        pods, claims = [*pods, *made], [*claims, *asked]
        wants |= {pod.key: (model, count) for pod in made}

    results = solve(
        pods,
        claims,
        types=[*types, PLAIN],
        pools=[make_nodepool(limits={"cpu": "40"} if limited else {})],
        nodes=[make_node("n1", cpu="8", memory="64Gi")],
        resource_slices=(make_slice(hardware(there), node="n1"),),
    )

    for node in results.new_nodes:
        for name in node.instance_types:
            asked_here = asked_by(node.pods, wants)
            assert holds(asked_here, counts.get(name, dict.fromkeys(MODELS, 0))), (node, name)
        announced = labels.REQUESTED_DRA_DRIVERS in node.annotations
        assert announced == any(key in wants for key in node.pods)
    assert holds(asked_by(results.existing_nodes.get("n1", ()), wants), there)
    assert results.lower_bound <= results.cost + 1e-9
    if not limited:
        _expect_none_left_that_fits_alone(results, wants, counts)


def _expect_none_left_that_fits_alone(
    results: Results, wants: dict[str, tuple[str, int]], counts: dict[str, dict[str, int]]
) -> None:
    """Without limits there is always one more node: a pod without a node fits on none."""
    for key in results.unschedulable:
        model, count = wants[key]
        assert not any(holds(Counter({model: count}), have) for have in counts.values()), key


@pytest.mark.parametrize("count", [1, 7, 64])
def test_equal_pods_use_all_devices_of_their_node(count: int) -> None:
    card = with_devices(make_type("card", cpu="64", price=2.0), hardware({"a100": 4}))
    pods, claims = replicas(count, request())

    results = solve(pods, claims, types=[card, PLAIN])

    assert results.cost == pytest.approx(2.0 * -(-count // 4))
