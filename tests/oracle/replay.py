"""Replay an answer.

Nodes are launched as the cloud might do it, with any instance type and offering that a NodeClaim
allows. Pods are bound to them one after the other. An answer is correct if some order binds every
pod to its planned node, whichever instances the cloud launches.

The replay also checks that each pending pod is answered exactly once, that NodePools keep their
limits and the order of their weights, that `minValues` hold, and that every price is that of the
cheapest available offering.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.oracle.binding import Lookup, bound_in_some_order, hard_spreads
from tests.oracle.nodeinfos import (
    HOSTNAME,
    INSTANCE_TYPE,
    STARTED,
    Choice,
    NodeInfo,
    existing_nodes,
    with_aliases,
)
from tests.oracle.poolorder import POOL_ORDER, RESERVATION, PoolOrder
from tests.oracle.rules import (
    ONE,
    Amounts,
    Labels,
    Object,
    amounts,
    clash,
    key_of,
    matches,
    meets,
    most,
    node_selected,
    plus,
    ports,
    requests,
    tolerates,
)
from tests.oracle.volumes import EBS, UNSTATED_ATTACHMENTS, Volumes

NODE_POOL = "karpenter.sh/nodepool"

MOST_TYPES = 600
"""Maximum number of instance types of a NodeClaim."""

LAUNCHES = 3
"""Number of random launches to replay, in addition to the cheapest."""

OPTIONS = 24
"""Maximum number of instance types and offerings of a NodeClaim to check one by one."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A broken rule, the object that breaks it, and how."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.rule}: {self.subject}: {self.text}"


class Replay:
    """An answer under examination."""

    def __init__(self, world: Object, answer: Object, types: Sequence[Object]) -> None:
        """Take a world and an answer; `types` lists the world's instance types."""
        self.world, self.answer = world, answer
        self.types = {row["name"]: row for row in types}
        self.pools = {pool["metadata"]["name"]: pool for pool in world.get("nodePools", [])}
        self.pods = {key_of(pod): pod for pod in world["pods"] if not pod["spec"].get("nodeName")}
        self.volumes, self.lookup = Volumes(world), Lookup(world)
        self._asked: dict[int, Amounts] = {}
        self._sizes: dict[str, Amounts] = {}
        self._found: dict[tuple[str, str], Finding] = {}

    def findings(self) -> list[Finding]:
        """Return every broken rule, once for each pod or node."""
        self._everyone_once()
        choices = [self.choices(index) for index in range(len(self.answer["newNodes"]))]
        if self._found:
            return sorted(self._found.values())
        self._sums()
        self._pool_rules(choices)
        self._certain_domains(choices)
        self._launches(choices)
        return sorted(self._found.values())

    def new_nodes(self) -> list[NodeInfo]:
        """Return the new nodes as the cheapest nodes allowed."""
        chance = random.Random(0)
        return [
            self._new_node(index, self.choices(index)[0], chance)
            for index in range(len(self.answer["newNodes"]))
        ]

    def cheapest(self) -> list[tuple[Object, NodeInfo]]:
        """Return every pod with its node, running pods included.

        New nodes are the cheapest nodes allowed.
        """
        node_infos = existing_nodes(self.world)
        placed = [(pod, node_info) for node_info in node_infos.values() for pod in node_info.pods]
        for name, keys in self.answer["existingNodes"].items():
            placed += [(pod, node_infos[name]) for pod in self.named(keys)]
        for node_info, node in zip(self.new_nodes(), self.answer["newNodes"], strict=True):
            placed += [(pod, node_info) for pod in self.named(node["pods"])]
        return placed

    def _report(self, rule: str, subject: str, text: str) -> None:
        self._found.setdefault((rule, subject), Finding(rule, subject, text))

    def _everyone_once(self) -> None:
        answered: Counter[str] = Counter(list(self.answer["unschedulable"]))
        for node in self.answer["newNodes"]:
            answered.update(node["pods"])
        for pods in self.answer["existingNodes"].values():
            answered.update(pods)
        for key in answered.keys() | self.pods.keys():
            if answered[key] != 1 or key not in self.pods:
                self._report("conservation", key, f"answered {answered[key]} times")

    def _sums(self) -> None:
        """Check the cost, its bound, and that no new node is empty.

        The cost must be the sum over the nodes and at least the bound.
        """
        cost, bound = self.answer["cost"], self.answer.get("lowerBound", 0.0)
        total = sum(node["price"] for node in self.answer["newNodes"])
        if abs(total - cost) > 1e-6 * max(total, 1.0):
            self._report("cost", "answer", f"{cost} instead of {total}")
        if bound > cost * (1 + 1e-9) + 1e-9:
            self._report("lower bound", "answer", f"{bound} of {cost}")
        for index, node in enumerate(self.answer["newNodes"]):
            if not node["pods"] or len(node["instanceTypes"]) > MOST_TYPES:
                text = f"{len(node['pods'])} pods, {len(node['instanceTypes'])} types"
                self._report("new node", f"new node {index}", text)
        for key, causes in self.answer["unschedulable"].items():
            if not causes:
                self._report("cause", key, "left over without one")

    # What the cloud may launch.

    def choices(self, index: int) -> list[Choice]:
        """Return what the cloud may launch for a new node, the cheapest first."""
        node = self.answer["newNodes"][index]
        choices = []
        for name in node["instanceTypes"]:
            kind = self.types[name]
            choices += [
                Choice(kind, offering)
                for offering in kind["offerings"]
                if self.open(kind, offering, node)
            ]
        choices.sort(key=lambda choice: (choice.offering["price"], choice.kind["name"]))
        subject = f"new node {index}"
        if not choices:
            self._report("launch", subject, "no available offering meets the requirements")
        elif abs(choices[0].offering["price"] - node["price"]) > 1e-9:
            price = choices[0].offering["price"]
            self._report("price", subject, f"{node['price']} instead of {price}")
        return choices

    def open(self, kind: Object, offering: Object, node: Object) -> bool:
        """Whether the requirements of a node allow this instance type and offering."""
        if not offering.get("available", True):
            return False
        known = defaultdict(list)
        for term in kind["requirements"]:
            known[term["key"]].append(term)
        place: Labels = offering["requirements"]
        for term in node["requirements"]:
            key = term["key"]
            if key in place:
                if not meets(place[key], term):
                    return False
            elif key in known and not any(
                meets(value, term) for own in known[key] for value in own.get("values", [])
            ):
                return False
        return True

    def _new_node(self, index: int, choice: Choice, chance: random.Random) -> NodeInfo:
        return self.launched(self.answer["newNodes"][index], f"new-{index}", choice, chance)

    def launched(self, node: Object, name: str, choice: Choice, chance: random.Random) -> NodeInfo:
        """Return a new node as the cloud launches it with this instance type and offering."""
        pool = self.pools[node["nodePool"]]
        template = pool["spec"]["template"]
        labels: dict[str, str] = {}
        for term in node["requirements"]:
            values = term.get("values") or []
            if term["operator"] == "In" and values:
                labels[term["key"]] = chance.choice(values)
            elif term["operator"] in ("Exists", "Gt", "Gte", "Lt", "Lte"):
                labels[term["key"]] = self._invented(node["requirements"], term["key"], chance)
        labels |= template.get("metadata", {}).get("labels", {})
        wanted = {term["key"]: term for term in node["requirements"]}
        for term in choice.kind["requirements"]:
            values = [
                value
                for value in term.get("values", [])
                if term["key"] not in wanted or meets(value, wanted[term["key"]])
            ]
            if values:
                labels[term["key"]] = values[0]
        labels |= choice.offering["requirements"]
        labels |= {NODE_POOL: node["nodePool"], INSTANCE_TYPE: choice.kind["name"]}
        labels |= {HOSTNAME: name, **STARTED}
        taints = template["spec"].get("taints") or []
        return NodeInfo(
            name,
            with_aliases(labels),
            taints,
            dict(self._allocatable(choice.kind)),
            attachable={EBS: choice.kind.get("attachableVolumes", UNSTATED_ATTACHMENTS)},
        )

    def _allocatable(self, kind: Object) -> Amounts:
        """Return the allocatable resources of a node of an instance type; cached."""
        if kind["name"] not in self._sizes:
            capacity = {"pods": 110 * ONE} | amounts(kind["capacity"])
            overhead = amounts(kind.get("overhead"))
            self._sizes[kind["name"]] = {k: v - overhead.get(k, 0) for k, v in capacity.items()}
        return self._sizes[kind["name"]]

    @staticmethod
    def _invented(terms: Sequence[Object], key: str, chance: random.Random) -> str:
        mine = [term for term in terms if term["key"] == key]
        numbers = (str(chance.randrange(1000)) for _ in range(2000))
        return next((number for number in numbers if all(meets(number, t) for t in mine)), "1")

    # NodePools.

    def drawn(self, choices: Sequence[Sequence[Choice]]) -> dict[str, Amounts]:
        """Return the usage of each NodePool that counts towards its limits, new nodes included.

        `choices` are those of each new node, of which the largest counts.
        """
        drawn: defaultdict[str, Amounts] = defaultdict(dict)
        for node in self.world.get("nodes", []) + self._in_flight():
            if pool := node["metadata"].get("labels", {}).get(NODE_POOL):
                capacity = amounts(node["status"].get("capacity"))
                drawn[pool] = plus(drawn[pool], capacity, {"nodes": ONE})
        for index, open_ in enumerate(choices):
            node = self.answer["newNodes"][index]
            name = node["nodePool"]
            largest = most(*(amounts(choice.kind["capacity"]) for choice in open_))
            drawn[name] = plus(drawn[name], largest, {"nodes": ONE})
        return drawn

    def launchable(
        self, name: str, drawn: Mapping[str, Amounts], chance: random.Random
    ) -> Iterator[NodeInfo]:
        """Yield the nodes that a NodePool could still launch; none if it has `minValues`.

        `drawn` is the usage of each NodePool that counts towards its limits.
        """
        pool = self.pools[name]
        wanted = pool["spec"]["template"]["spec"].get("requirements") or []
        if "replicas" in pool["spec"] or any(term.get("minValues") for term in wanted):
            return
        node = {"nodePool": name, "requirements": wanted}
        limits = amounts(pool["spec"].get("limits"))
        for kind in self.types.values():
            more = plus(drawn.get(name, {}), amounts(kind["capacity"]), {"nodes": ONE})
            if any(more.get(resource, 0) > limit for resource, limit in limits.items()):
                continue
            for offering in kind["offerings"]:
                if RESERVATION in offering["requirements"] or not self.open(kind, offering, node):
                    continue
                node_info = self.launched(node, "elsewhere", Choice(kind, offering), chance)
                if matches(node_info.labels, wanted):
                    yield node_info

    def _pool_rules(self, choices: Sequence[Sequence[Choice]]) -> None:
        drawn = self.drawn(choices)
        for index, open_ in enumerate(choices):
            name = self.answer["newNodes"][index]["nodePool"]
            self._template_rules(index, open_)
            if "replicas" in self.pools[name]["spec"]:
                self._report("static pool", f"new node {index}", f"of {name}")
        self._reservations()
        for name, pool in self.pools.items():
            if not any(node["nodePool"] == name for node in self.answer["newNodes"]):
                continue
            for resource, limit in amounts(pool["spec"].get("limits")).items():
                if drawn.get(name, {}).get(resource, 0) > limit:
                    self._report("limit", name, f"{resource}: {drawn[name][resource] / ONE}")
        for index, text in PoolOrder(self, drawn).strays(choices):
            self._report(POOL_ORDER, f"new node {index}", text)

    def _reservations(self) -> None:
        """Check that reserved capacity suffices for the nodes that require it.

        No set of reservations may have fewer instances than there are nodes that need one of the
        set.
        """
        counts = {
            place[RESERVATION]: offering.get("reservationCapacity", 0)
            for kind in self.types.values()
            for offering in kind["offerings"]
            if RESERVATION in (place := offering["requirements"])
        }
        asked = [
            frozenset(term["values"])
            for node in self.answer["newNodes"]
            for term in node["requirements"]
            if term["key"] == RESERVATION and term["operator"] == "In"
        ]
        for named in set(asked):
            number = sum(others <= named for others in asked)
            if number > sum(counts.get(identity, 0) for identity in named):
                self._report("reservation", ", ".join(sorted(named)), f"{number} nodes")

    def _in_flight(self) -> list[Object]:
        there = {node["spec"].get("providerID") for node in self.world.get("nodes", [])}
        return [
            claim
            for claim in self.world.get("nodeClaims", [])
            if claim.get("status", {}).get("providerID") not in there
        ]

    def _template_rules(self, index: int, open_: Sequence[Choice]) -> None:
        node = self.answer["newNodes"][index]
        template = self.pools[node["nodePool"]]["spec"]["template"]["spec"]
        best_effort = self.world.get("settings", {}).get("MIN_VALUES_POLICY") == "BestEffort"
        for term in template.get("requirements") or []:
            if term.get("minValues") and not best_effort:
                values = set()
                for choice in open_:
                    values |= set(self._values_of(choice, term["key"]))
                if len(values) < term["minValues"]:
                    text = f"{term['key']}: {len(values)} values of {term['minValues']}"
                    self._report("minValues", f"new node {index}", text)

    @staticmethod
    def _values_of(choice: Choice, key: str) -> list[str]:
        if key in choice.offering["requirements"]:
            return [choice.offering["requirements"][key]]
        return [
            value
            for term in choice.kind["requirements"]
            if term["key"] == key
            for value in term.get("values", [])
        ]

    def _certain_domains(self, choices: Sequence[Sequence[Choice]]) -> None:
        """Check that pods with topology spread have a fixed domain before the launch."""
        for node, open_ in zip(self.answer["newNodes"], choices, strict=True):
            places = [choice.offering["requirements"] for choice in open_]
            for pod in self.named(node["pods"]):
                for term in hard_spreads(pod):
                    values = {place.get(term["topologyKey"]) for place in places}
                    if len(values) > 1:
                        text = f"any of {sorted(map(str, values))} by {term['topologyKey']}"
                        self._report("domain", key_of(pod), text)

    # Launching and binding.

    def _launches(self, choices: Sequence[Sequence[Choice]]) -> None:
        chance = random.Random(0)
        self._every_option(choices, chance)
        self._play([ways[0] for ways in choices], chance)
        for _ in range(LAUNCHES):
            if self._found:
                return
            self._play([chance.choice(ways) for ways in choices], chance)

    def _every_option(self, choices: Sequence[Sequence[Choice]], chance: random.Random) -> None:
        for index, open_ in enumerate(choices):
            pods = self.named(self.answer["newNodes"][index]["pods"])
            template = self.pools[self.answer["newNodes"][index]["nodePool"]]["spec"]["template"]
            wanted = template["spec"].get("requirements") or []
            sample = open_ if len(open_) <= OPTIONS else chance.sample(list(open_), OPTIONS)
            for choice in sample:
                node_info = self._new_node(index, choice, chance)
                self.with_daemons(node_info)
                what = f"{choice.kind['name']} {choice.offering['requirements']}"
                if not matches(node_info.labels, wanted):
                    self._report("pool", node_info.name, f"not of the pool's requirements: {what}")
                self._on_node(node_info, pods, what)

    def named(self, keys: Iterable[str]) -> list[Object]:
        """Return pods by their keys."""
        return [self.pods[key] for key in keys]

    def with_daemons(self, node_info: NodeInfo) -> None:
        """Add the daemons that run on a node."""
        running = {
            owner.get("name")
            for pod in node_info.pods
            for owner in pod["metadata"].get("ownerReferences", [])
            if owner.get("kind") == "DaemonSet"
        }
        for daemon in self.world.get("daemonSets", []):
            pod = daemon["spec"]["template"]
            here = tolerates(pod, node_info.taints) and node_selected(
                pod, node_info.labels, node_info.name
            )
            if here and daemon["metadata"]["name"] not in running:
                node_info.daemons = plus(node_info.daemons, requests(pod))
                node_info.daemon_ports += ports(pod)

    def _on_node(self, node_info: NodeInfo, pods: Sequence[Object], what: str) -> None:
        """Check what does not depend on other nodes."""
        alike: dict[str, Object] = {}
        for pod in pods:
            alike.setdefault(json.dumps(pod["spec"], sort_keys=True), pod)
        for pod in alike.values():
            if not node_selected(pod, node_info.labels, node_info.name):
                self._report("node affinity", key_of(pod), f"not on {node_info.name}, {what}")
            if not tolerates(pod, node_info.taints):
                self._report("taint", key_of(pod), f"not on {node_info.name}, {what}")
        for pod in pods:
            if not self.volumes.reachable(pod, node_info):
                self._report("volume", key_of(pod), f"not from {node_info.name}, {what}")
        self._capacity(node_info, pods, what)
        self._host_ports(node_info, pods)
        if pods:
            self._attachments(node_info, pods)

    def _host_ports(self, node_info: NodeInfo, pods: Sequence[Object]) -> None:
        taken = list(node_info.daemon_ports)
        for pod in node_info.pods:
            taken += ports(pod)
        for pod in pods:
            if clash(ports(pod), taken):
                self._report("host port", key_of(pod), f"taken on {node_info.name}")
            taken += ports(pod)

    def _attachments(self, node_info: NodeInfo, pods: Sequence[Object]) -> None:
        attached: dict[str, set[str]] = defaultdict(set)
        for pod in (*node_info.pods, *pods):
            for driver, name in self.volumes.attached(pod):
                attached[driver].add(name)
        for driver, limit in node_info.attachable.items():
            if len(attached[driver]) > limit:
                self._report("volume limit", node_info.name, f"{len(attached[driver])} of {driver}")

    def requests(self, pod: Object) -> Amounts:
        """Return the requests of a pod; cached."""
        if id(pod) not in self._asked:
            self._asked[id(pod)] = requests(pod)
        return self._asked[id(pod)]

    def _capacity(self, node_info: NodeInfo, pods: Sequence[Object], what: str) -> None:
        wanted = plus(*(self.requests(pod) for pod in pods))
        asked = plus(wanted, *(self.requests(pod) for pod in node_info.pods), node_info.daemons)
        for name, value in asked.items():
            if wanted.get(name) and value > node_info.allocatable.get(name, 0):
                have = node_info.allocatable.get(name, 0)
                text = f"{name}: {value / ONE} of {have / ONE} ({what})"
                self._report("resources", node_info.name, text)

    def sequence(self) -> list[str]:
        """Return the pods of the answer in an order that binds as many as any order found.

        The nodes are the cheapest nodes allowed.
        """
        node_infos = [*existing_nodes(self.world).values(), *self.new_nodes()]
        by_name = {node_info.name: node_info for node_info in node_infos}
        running = sum(len(node_info.pods) for node_info in node_infos)
        assigned = [
            (pod, by_name[name])
            for name, keys in self._places().items()
            for pod in self.named(keys)
        ]
        play, _ = bound_in_some_order(node_infos, assigned, self.lookup, random.Random(0))
        return [key_of(pod) for pod, _ in play.bound[running:]]

    def _places(self) -> dict[str, Sequence[str]]:
        new = {f"new-{index}": node["pods"] for index, node in enumerate(self.answer["newNodes"])}
        return {**self.answer["existingNodes"], **new}

    def _play(self, chosen: Sequence[Choice], chance: random.Random) -> None:
        node_infos = existing_nodes(self.world)
        assigned: list[tuple[Object, NodeInfo]] = []
        for name, keys in self.answer["existingNodes"].items():
            if name not in node_infos:
                self._report("existence", name, "no such node")
                return
            self.with_daemons(node_infos[name])
            self._on_node(node_infos[name], self.named(keys), "as it is")
            assigned += [(pod, node_infos[name]) for pod in self.named(keys)]
        for index, choice in enumerate(chosen):
            node_info = self._new_node(index, choice, chance)
            node_infos[node_info.name] = node_info
            keys = self.answer["newNodes"][index]["pods"]
            assigned += [(pod, node_info) for pod in self.named(keys)]
        _, stuck = bound_in_some_order(list(node_infos.values()), assigned, self.lookup, chance)
        for pod, reason in stuck:
            self._report("topology", key_of(pod), reason)


def findings(world: Object, answer: Object, types: Sequence[Object]) -> list[Finding]:
    """Return every rule that an answer breaks; `types` lists the world's instance types."""
    return Replay(world, answer, types).findings()
