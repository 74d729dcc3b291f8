"""The question of a solve: what waits, what is there, and what can be bought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.apis.pods import Pod
from controller.constraints import resources
from controller.constraints.requirements import Requirements, one_of, read
from controller.constraints.taints import PREFER_NO_SCHEDULE
from controller.scheduling.domains.crowds import NodeCrowds
from controller.scheduling.domains.domains import Domains
from controller.scheduling.domains.openings import Openings
from controller.scheduling.encoding.encoding import Catalog, Matrix
from controller.scheduling.encoding.market import Market, market, values_apart
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.preferences import Demand, first_demand
from controller.scheduling.encoding.shapes import Shape, shapes
from controller.scheduling.encoding.topology import Groups, count_running
from controller.scheduling.encoding.volumes import Attachments, VolumeIndex, Volumes
from controller.scheduling.encoding.wishes import groups_of
from controller.scheduling.equipping.equipping import Devices
from controller.scheduling.limits import stock as stock_of
from controller.scheduling.minimums import flexible_room, spanning
from controller.scheduling.packing.giveaways import overstatement
from controller.scheduling.packing.posing import Poser
from controller.scheduling.reading import Reader, sites, size_of
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot

SHAPING = (resources.CPU, resources.MEMORY)
"""What gives a machine its shape: the first of the solve's resources, asked for or not."""

CLAIMS_DEVICES = "claims devices, which are left alone here: set IGNORE_DRA_REQUESTS=false"


class Question:
    """Pods and a world, read; `left` (limits) is what may be bought to begin with.

    `room` is kinds × the solve's resources, `names`; `consumption` kinds × limits, counted in
    `limit_units`. `refused` has the pods that cannot even be read, with causes.
    """

    def __init__(
        self, pods: Sequence[Pod], *, snapshot: Snapshot, settings: Settings, catalog: Catalog
    ) -> None:
        """Read the pods and the world; nothing is decided yet."""
        self.settings, self.catalog = settings, catalog
        self.refused: dict[str, tuple[str, ...]] = {}
        self.volumes = VolumeIndex(snapshot)
        self.devices = Devices(pods, snapshot, catalog)
        self.demands = self._first_demands(shapes([self.volumes.settled(pod) for pod in pods]))
        asked = {name for shape, _ in self.demands for name in shape.requests}
        self.names = names = (*SHAPING, *sorted(asked.difference(SHAPING)))
        waiting = {key for shape, _ in self.demands for key in shape.keys}
        running = [pod for pod in snapshot.pods if pod.spec.node_name and pod.key not in waiting]
        self.nodes = Nodes(snapshot.nodes, pods=running, daemons=catalog.daemons, names=names)
        self.groups = self._stated_groups(snapshot, running)
        self.market = self._opened_market()
        self.room = flexible_room(
            self.market,
            along(names, catalog)[self.market.row_of],
            settings,
            [size_of(shape, names) for shape, _ in self.demands],
        )
        self.openings = Openings(self.market, self.room)
        self.domains = Domains(self.nodes, self.openings)
        self.reader = Reader(
            catalog,
            self.market,
            self.nodes,
            self.groups,
            self.devices,
            openings=self.openings,
            names=names,
        )
        self.stock = stock_of(catalog, snapshot.nodes)
        # Reservations are limits as well: a node of one takes one of its instances.
        held = self.market.reservation_of_variant[self.market.variant_of]
        reserved = held[:, None] == np.arange(len(catalog.reservations))[None]
        self.consumption = np.concatenate(
            [self.stock.per_row[self.market.row_of], reserved], axis=1
        ).astype(np.float64)
        counts = [float(count) for _, count in catalog.reservations]
        self.left = np.concatenate([self.stock.left, np.array(counts, dtype=np.float64)])
        # Memory is counted in thousandths of bytes; programs solve for what is about 1. By
        # powers of two numbers come back as they went.
        most = self.consumption.max(axis=0, initial=1.0)
        self.limit_units = np.exp2(np.floor(np.log2(most)))
        self.poser = Poser(
            self.market,
            self.groups,
            room=self.room,
            consumption=self.consumption,
            limit_units=self.limit_units,
        )
        bought = self.market.price[held < 0]
        self.overstated = overstatement(self.market.price, sum(counts))
        self.overstated += overstatement(bought, len(pods))
        self.crowds = NodeCrowds(self.groups.all, self.nodes)
        self.attachments = Attachments(
            self.nodes.all, snapshot=snapshot, running=running, index=self.volumes
        )

    def _first_demands(self, found: Sequence[Shape]) -> list[tuple[Shape, Demand]]:
        soft = any(
            taint.effect == PREFER_NO_SCHEDULE
            for pool in self.catalog.pools
            for taint in pool.taints
        )
        policy = self.settings.preference_policy
        demands = []
        known: dict[bytes, tuple[Demand, Volumes]] = {}
        for shape in self._equipped(found):
            if shape.flaw:
                self._refuse(shape.keys, shape.flaw)
                continue
            try:
                if shape.character not in known:
                    demand = first_demand(shape.spec, policy=policy, soft_taints=soft)
                    volumes = self.volumes.of(shape.namespace, shape.spec)
                    known[shape.character] = demand, volumes
                demand, shape.volumes = known[shape.character]
            except ValueError as malformed:
                self._refuse(shape.keys, str(malformed))
                continue
            demands.append((shape, demand))
        return demands

    def _equipped(self, found: Sequence[Shape]) -> Sequence[Shape]:
        """Part shapes by the claims of their pods; give those up that cannot have devices."""
        if not any(shape.spec.resource_claims for shape in found):
            return found
        parted: list[Shape] = []
        for shape in found:
            if not shape.spec.resource_claims:
                parted.append(shape)
            elif self.settings.ignore_dra_requests:
                self._refuse(shape.keys, CLAIMS_DEVICES)
            else:
                parts, failed = self.devices.parted(shape)
                parted.extend(parts)
                for key, cause in failed.items():
                    self._refuse([key], cause)
        return parted

    def _characters(self) -> list[tuple[Shape, Demand]]:
        """Return the first shape of each character."""
        firsts: dict[bytes, tuple[Shape, Demand]] = {}
        for shape, demand in self.demands:
            firsts.setdefault(shape.character, (shape, demand))
        return list(firsts.values())

    def _stated_groups(self, snapshot: Snapshot, running: Sequence[Pod]) -> Groups:
        groups = Groups(snapshot.namespaces)
        for shape, demand in self._characters():
            groups_of(shape, demand, groups)
        groups.of_running(running, snapshot.nodes)
        count_running(groups.all, running, snapshot.nodes)
        return groups

    def _opened_market(self) -> Market:
        wishes = [
            (site, shape.ports)
            for shape, demand in self._characters()
            for site in sites(shape, demand, self.devices)
        ]
        asked = [site for site, _ in wishes]
        for _, demand in self._characters():
            asked.extend(read(one.preference.match_expressions) for one in demand.preferred_nodes)
        asked.extend(self.devices.questions)
        domains: list[Requirements] = []
        for key in sorted({group.key for group in self.groups.all if not group.per_node}):
            wanted = list(dict.fromkeys(one[key] for one in asked if key in one))
            values = values_apart(self.catalog, key, wanted)
            domains.extend({key: one_of(value)} for value in values)
        opened = market(self.catalog, [*asked, *domains], ports=(ports for _, ports in wishes))
        return spanning(opened, wishes, domains)

    def _refuse(self, keys: Sequence[str], cause: str) -> None:
        for key in keys:
            self.refused[key] = (cause,)


def along(names: Sequence[str], catalog: Catalog) -> Matrix:
    """Return what rows have for pods along other resource names; rows × names."""
    room = np.zeros((len(catalog.pool_of_row), len(names)))
    for place, name in enumerate(names):
        if name in catalog.resource_names:
            room[:, place] = catalog.allocatable[:, catalog.resource_names.index(name)]
    return room
