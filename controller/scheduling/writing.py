"""From planned nodes to what a NodeClaim says."""

from __future__ import annotations

from controller.constraints import resources
from controller.constraints.requirements import conjunction, one_of
from controller.scheduling.claims import Claims
from controller.scheduling.encoding.encoding import Vector
from controller.scheduling.encoding.market import barred_rows
from controller.scheduling.packing.planning import Planned
from controller.scheduling.question import Question
from controller.scheduling.results import NewNode


class Writing:
    """Writes claims for planned nodes; remembers what like pods must be promised."""

    def __init__(self, question: Question, left: Vector) -> None:
        """Write within what limits have `left`."""
        self._question = question
        self._promises: dict[tuple[object, ...], int] = {}
        everywhere = {
            group.key: question.openings.named(group.key) for group in question.groups.all
        }
        limits_left = left[: len(question.stock.left)]
        self._claims = Claims(
            question.catalog, question.stock, limits_left, question.settings, everywhere
        )

    def written(self, planned: Planned) -> NewNode | None:
        """Return a node; None when too few types hold its pods."""
        variant = self._question.market.variant_of[planned.kind]
        ports = [port for portion, _ in planned.members for port in portion.wish.shape.ports]
        return self._claims.write(
            pool=int(self._question.market.pool_of_variant[variant]),
            reservation=int(self._question.market.reservation_of_variant[variant]),
            pods=planned.keys,
            requests=resources.total(
                resources.times(portion.wish.shape.requests, len(keys))
                for portion, keys in planned.members
            ),
            promised=self._promised(planned),
            drawn=self._question.stock.per_row[self._question.market.row_of[planned.kind]],
            annotations=self._question.devices.annotations(one for one, _ in planned.members),
            barred=barred_rows(self._question.catalog, ports) if ports else None,
        )

    def _promised(self, planned: Planned) -> frozenset[int]:
        """Return what a node must promise to its pods."""
        variant = int(self._question.market.variant_of[planned.kind])
        found = set()
        for portion, _ in planned.members:
            reading = portion.wish.reading
            needs = portion.needs or {}
            known = (reading, portion.pins, tuple(sorted(needs.items())), variant)
            number = self._promises.get(known)
            if number is None:
                chosen = next(i for i, truth in enumerate(reading.truths) if truth[variant])
                pinned = {key: one_of(value) for key, value in portion.pins}
                promise = conjunction(reading.places[chosen], reading.demand.liked, pinned, needs)
                number = self._promises[known] = self._claims.promise(promise)
            found.add(number)
        return frozenset(found)
