"""Small and middle worlds over every constraint, made from seeds.

Each world takes a few *features*, and each feature adds to it what it is about: groups
of pods, pools, nodes, volumes. `features(seed)` names them, so that a failing seed says
at once where to look. The same seed is the same world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.parity.worlds import (
    ARCH,
    CAPACITY_TYPE,
    FAMILY,
    HOSTNAME,
    ZONE,
    ZONES,
    Object,
    World,
    instance_type,
    offering,
    pod,
    requirement,
)

CPU = "karpenter.k8s.aws/instance-cpu"
SIZE = "karpenter.k8s.aws/instance-size"
TYPE = "node.kubernetes.io/instance-type"
TEAM = "example.com/team"
RACK = "example.com/rack"
DRIVER = "ebs.csi.aws.com"
MANY = 12
"""Every so many seeds a world is a middle one, of a few hundred pods."""

FAMILIES = (
    ("c6i", 2, 0.0425, "amd64"),
    ("m6i", 4, 0.048, "amd64"),
    ("r6i", 8, 0.063, "amd64"),
    ("c7g", 2, 0.0363, "arm64"),
    ("m7g", 4, 0.0408, "arm64"),
)
SIZES = (("large", 2), ("xlarge", 4), ("2xlarge", 8), ("4xlarge", 16), ("8xlarge", 32))


@dataclass(slots=True)
class Draft:
    """A world in the making."""

    chance: random.Random
    scale: int
    world: dict[str, list[Object]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    groups: int = 0
    on_every_pod: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, *objects: Object) -> None:
        """Put objects into the world."""
        self.world.setdefault(kind, []).extend(objects)

    def pools(self, *pools: Object) -> None:
        """Add pools, except those of a name that is taken."""
        self._unless_taken("nodePools", pools)

    def storage_classes(self, *names: str, **more: Any) -> None:
        """Add classes whose volumes are made when a node is chosen, unless they are there."""
        made = [
            {
                "metadata": {"name": name},
                "provisioner": DRIVER,
                "volumeBindingMode": "WaitForFirstConsumer",
                **more,
            }
            for name in names
        ]
        self._unless_taken("storageClasses", made)

    def _unless_taken(self, kind: str, objects: Sequence[Object]) -> None:
        taken = {one["metadata"]["name"] for one in self.world.get(kind, [])}
        self.add(kind, *(one for one in objects if one["metadata"]["name"] not in taken))

    def name(self) -> str:
        """Return a name for a new group."""
        self.groups += 1
        return f"g{self.groups}"

    def number(self, least: int = 1, most: int = 8) -> int:
        """Return how many pods a group has."""
        return self.chance.randint(least, most) * self.scale

    def group(
        self,
        spec: Mapping[str, Any] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        number: int | None = None,
        name: str | None = None,
        cpu: int | None = None,
        memory: int | None = None,
    ) -> list[Object]:
        """Add pods of one shape; returns them, so that features can write more into them."""
        name = name or self.name()
        cpu = cpu or self.chance.choice((100, 250, 500, 1000, 1500, 3000))
        memory = memory or cpu * self.chance.choice((1, 2, 2, 4, 7))
        labels = {"app": name} if labels is None else labels
        made = []
        for index in range(self.number() if number is None else number):
            one = pod(f"{name}-{index}", cpu=cpu, memory=memory, labels=labels, **(spec or {}))
            one["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}-{index}"}
            one["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            made.append(one)
        self.add("pods", *made)
        return made


Feature = Callable[[Draft], None]


def world(seed: int) -> World:
    """Return the world of a seed."""
    chance = random.Random(seed)
    draft = Draft(chance, scale=8 if seed % MANY == 0 else 1)
    draft.add("instanceTypes", *types(chance))
    draft.add("namespaces", *(_namespace(name) for name in ("default", "kube-system")))
    for feature in _chosen(seed):
        feature(draft)
    if chance.random() < 0.5:
        draft.group()
    if "nodePools" not in draft.world:
        draft.pools(pool("default"))
    for one in draft.world["pods"]:
        for key, value in draft.on_every_pod.items():
            one["spec"].setdefault(key, value)
    return {**draft.world, "settings": draft.settings}


def features(seed: int) -> tuple[str, ...]:
    """Name what the world of a seed is about."""
    return tuple(feature.__name__ for feature in _chosen(seed))


def _chosen(seed: int) -> list[Feature]:
    """One feature in turn, so that none is forgotten, and up to three by chance."""
    chance = random.Random(f"features of {seed}")
    first = FEATURES[seed % len(FEATURES)]
    others = [one for one in FEATURES if one is not first]
    return [first, *chance.sample(others, chance.randint(0, 3))]


def types(chance: random.Random) -> list[Object]:
    """Return 25 to 27 types in three zones; some offerings are missing or have no capacity."""
    found = []
    for family, ratio, per_cpu, arch in FAMILIES:
        for size, cpu in SIZES:
            offerings = _offerings(chance, per_cpu * cpu)
            one = instance_type(
                f"{family}.{size}",
                cpu=cpu,
                memory_gib=cpu * ratio,
                pods=10 if cpu <= 2 else 29 if cpu <= 8 else 58,
                arch=arch,
                offerings=offerings,
                **{FAMILY: family, SIZE: size, CPU: str(cpu)},
            )
            one["capacity"]["ephemeral-storage"] = "20Gi"
            found.append(one)
    for size, cpu, count in (("xlarge", 4, 1), ("12xlarge", 48, 4)):
        one = instance_type(
            f"g5.{size}",
            cpu=cpu,
            memory_gib=cpu * 4,
            pods=58,
            offerings=_offerings(chance, 0.25 * cpu),
            **{FAMILY: "g5", SIZE: size, CPU: str(cpu)},
        )
        one["capacity"] |= {"nvidia.com/gpu": str(count), "ephemeral-storage": "20Gi"}
        found.append(one)
    return found


def _offerings(chance: random.Random, price: float) -> list[Object]:
    found = []
    for zone in ZONES:
        if chance.random() < 0.04:
            continue
        cheap = price * chance.uniform(0.3, 0.6)
        found.append(offering(zone, "on-demand", price, available=chance.random() > 0.03))
        found.append(offering(zone, "spot", cheap, available=chance.random() > 0.15))
    return found or [offering(ZONES[0], "on-demand", price)]


def pool(name: str, **spec: Any) -> Object:
    """Return a NodePool; `requirements`, `taints`, `startupTaints`, `labels` go to its template."""
    template = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "requirements": spec.pop("requirements", []),
        "taints": spec.pop("taints", []),
        "startupTaints": spec.pop("startupTaints", []),
    }
    metadata = {"labels": spec.pop("labels", {})}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": metadata, "spec": template}, **spec},
    }


def _namespace(name: str, **labels: str) -> Object:
    labels["kubernetes.io/metadata.name"] = name
    return {"metadata": {"name": name, "labels": labels}}


def _node_affinity(*terms: Sequence[Object]) -> Object:
    chosen = [{"matchExpressions": list(term)} for term in terms]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": chosen}
        }
    }


def _preferred_nodes(*weighted: tuple[int, Object]) -> Object:
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "preference": {"matchExpressions": [term]}}
                for weight, term in weighted
            ]
        }
    }


def _term(labels: Mapping[str, str], key: str, **more: Any) -> Object:
    return {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": key, **more}


def _pods(kind: str, *terms: Object) -> Object:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def _preferred_pods(kind: str, *weighted: tuple[int, Object]) -> Object:
    return {
        kind: {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "podAffinityTerm": term} for weight, term in weighted
            ]
        }
    }


def _spread(labels: Mapping[str, str], key: str, **more: Any) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(labels)},
        **more,
    }


# What pods ask of nodes.


def plain(draft: Draft) -> None:
    """Pods that run anywhere."""
    for _ in range(draft.chance.randint(1, 4)):
        draft.group()


def selectors(draft: Draft) -> None:
    """Node selectors by labels that types and offerings bring."""
    chosen = draft.chance.sample(
        [
            {ZONE: draft.chance.choice(ZONES)},
            {ARCH: draft.chance.choice(("amd64", "arm64"))},
            {CAPACITY_TYPE: draft.chance.choice(("spot", "on-demand"))},
            {FAMILY: draft.chance.choice([one[0] for one in FAMILIES])},
            {TYPE: f"{draft.chance.choice(FAMILIES)[0]}.xlarge"},
            {ZONE: draft.chance.choice(ZONES), CAPACITY_TYPE: "on-demand", ARCH: "amd64"},
            {"failure-domain.beta.kubernetes.io/zone": draft.chance.choice(ZONES)},
            {"beta.kubernetes.io/arch": "arm64"},
        ],
        3,
    )
    for one in chosen:
        draft.group({"nodeSelector": one})


def node_affinity(draft: Draft) -> None:
    """Required node affinity with every operator, and terms of which one must hold."""
    chance = draft.chance
    expressions = [
        requirement(ZONE, chance.choice(ZONES), operator="NotIn"),
        requirement(FAMILY, *sorted(chance.sample([one[0] for one in FAMILIES], 2))),
        requirement(FAMILY, "c6i", "m7g", operator="NotIn"),
        requirement(CPU, str(chance.choice((4, 7, 16))), operator="Gt"),
        requirement(CPU, str(chance.choice((4, 9, 16))), operator="Lt"),
        requirement(SIZE, operator="Exists"),
        requirement("example.com/never", operator="DoesNotExist"),
        requirement(CAPACITY_TYPE, "spot", operator="NotIn"),
        requirement("example.com/unknown", "x"),
        requirement("example.com/unknown", "x", operator="NotIn"),
    ]
    for _ in range(chance.randint(1, 3)):
        terms = [
            chance.sample(expressions, chance.randint(1, 2)) for _ in range(chance.randint(1, 3))
        ]
        draft.group({"affinity": _node_affinity(*terms)})


def preferred_node_affinity(draft: Draft) -> None:
    """Preferences that can be met, cannot, or contradict one another."""
    chance = draft.chance
    wishes = [
        (chance.randint(1, 100), requirement(ZONE, zone)) for zone in (*ZONES, "us-west-2z")
    ] + [
        (chance.randint(1, 100), requirement(CAPACITY_TYPE, "on-demand")),
        (chance.randint(1, 100), requirement(ARCH, "arm64")),
        (chance.randint(1, 100), requirement("example.com/unknown", "x")),
    ]
    for _ in range(chance.randint(1, 3)):
        draft.group({"affinity": _preferred_nodes(*chance.sample(wishes, chance.randint(1, 3)))})


def custom_labels(draft: Draft) -> None:
    """Labels that only pools bring: fixed, one of several, or any that pods choose."""
    chance = draft.chance
    draft.pools(
        pool("fixed", labels={TEAM: "red"}, weight=chance.randint(1, 100)),
        pool("several", requirements=[requirement(TEAM, "blue", "green")], weight=1),
        pool("any", requirements=[requirement(RACK, operator="Exists")], weight=2),
        pool("bounded", requirements=[requirement(RACK, "5", operator="Gt")], weight=3),
    )
    for chosen in chance.sample(
        [
            {TEAM: "red"},
            {TEAM: "blue"},
            {TEAM: "green"},
            {RACK: "a1"},
            {RACK: "7"},
            {RACK: "3"},
            {TEAM: "black"},
        ],
        3,
    ):
        draft.group({"nodeSelector": chosen})
    # Of a key that nobody asks for by value: Karpenter lets one pod's NotIn bring a label into
    # being that another pod then fills in, which is a test of its own.
    absent = requirement("example.com/absent", "x", operator="NotIn")
    draft.group({"affinity": _node_affinity([absent])})
    draft.group({"affinity": _node_affinity([requirement(RACK, operator="Exists")])})


def taints(draft: Draft) -> None:
    """Tainted pools, startup taints, a soft taint, and tolerations of every form."""
    chance = draft.chance
    team = {"key": "team", "value": "batch", "effect": "NoSchedule"}
    soft = {"key": "soft", "value": "yes", "effect": "PreferNoSchedule"}
    gone = {"key": "starting", "value": "up", "effect": "NoSchedule"}
    stays = {"key": "team", "value": "batch", "effect": "NoExecute"}
    draft.pools(
        pool("tainted", taints=[team], weight=chance.randint(1, 100)),
        pool("strict", taints=[stays], weight=chance.randint(1, 100)),
        pool("starting", startupTaints=[gone], taints=[soft], weight=chance.randint(1, 100)),
    )
    if chance.random() < 0.5:
        draft.pools(pool("open", weight=chance.randint(1, 100)))
    for tolerations in (
        [{"key": "team", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}],
        [{"key": "team", "operator": "Exists"}],
        [{"operator": "Exists"}],
        [{"key": "team", "operator": "Equal", "value": "other"}],
        [],
    ):
        if chance.random() < 0.7:
            draft.group({"tolerations": tolerations})


# Topology.


def zone_spread(draft: Draft) -> None:
    """Spread over zones, with every option there is."""
    chance = draft.chance
    for _ in range(chance.randint(1, 2)):
        name = draft.name()
        more = chance.choice(
            (
                {},
                {"maxSkew": chance.randint(1, 4)},
                {"minDomains": chance.randint(2, 3)},
                {"minDomains": 4},
                {"nodeAffinityPolicy": "Ignore"},
                {"whenUnsatisfiable": "ScheduleAnyway"},
            )
        )
        spec: dict[str, Any] = {"topologySpreadConstraints": [_spread({"app": name}, ZONE, **more)]}
        if chance.random() < 0.4:
            spec["affinity"] = _node_affinity([requirement(ZONE, *sorted(chance.sample(ZONES, 2)))])
        draft.group(spec, name=name, number=draft.number(3, 9))


def hostname_spread(draft: Draft) -> None:
    """Spread over nodes, alone or together with zones."""
    chance = draft.chance
    name = draft.name()
    constraints = [_spread({"app": name}, HOSTNAME, maxSkew=chance.randint(1, 3))]
    if chance.random() < 0.4:
        constraints.append(_spread({"app": name}, ZONE, maxSkew=chance.randint(1, 2)))
    if chance.random() < 0.3:
        constraints[0]["whenUnsatisfiable"] = "ScheduleAnyway"
    draft.group({"topologySpreadConstraints": constraints}, name=name, number=draft.number(2, 6))


def other_spread(draft: Draft) -> None:
    """Spread over capacity types and over a label of the pools."""
    chance = draft.chance
    name = draft.name()
    draft.group(
        {"topologySpreadConstraints": [_spread({"app": name}, CAPACITY_TYPE)]},
        name=name,
        number=draft.number(2, 6),
    )
    draft.pools(pool("default", requirements=[requirement(RACK, "1", "2", "3")]))
    name = draft.name()
    constraint = _spread({"app": name}, RACK, maxSkew=chance.randint(1, 2))
    draft.group({"topologySpreadConstraints": [constraint]}, name=name, number=draft.number(2, 6))


def spread_of_others(draft: Draft) -> None:
    """Spread that counts pods of other groups, or not the pods themselves."""
    shared = {"tier": draft.name()}
    draft.group(
        {"topologySpreadConstraints": [_spread(shared, ZONE)]},
        labels=shared,
        number=draft.number(2, 6),
    )
    draft.group(labels=shared, number=draft.number(1, 3))
    draft.group({"topologySpreadConstraints": [_spread(shared, ZONE, maxSkew=2)]}, number=2)


def match_label_keys(draft: Draft) -> None:
    """Two revisions of an application, each spread or kept apart on its own."""
    app = {"app": draft.name()}
    key = draft.chance.choice((ZONE, HOSTNAME))
    for revision in ("one", "two"):
        labels = {**app, "pod-template-hash": revision}
        constraint = _spread(app, key, matchLabelKeys=["pod-template-hash"])
        draft.group(
            {"topologySpreadConstraints": [constraint]}, labels=labels, number=draft.number(2, 4)
        )
    for revision in ("one", "two"):
        labels = {"app": "apart", "pod-template-hash": revision}
        # The API server writes matchLabelKeys of affinity into the selector.
        selector = {
            "matchLabels": {"app": "apart"},
            "matchExpressions": [requirement("pod-template-hash", revision)],
        }
        term = {
            "labelSelector": selector,
            "topologyKey": HOSTNAME,
            "matchLabelKeys": ["pod-template-hash"],
        }
        draft.group({"affinity": _pods("podAntiAffinity", term)}, labels=labels, number=2)


def taints_policy(draft: Draft) -> None:
    """A spread that leaves out nodes the pods do not tolerate."""
    chance = draft.chance
    taint = {"key": "closed", "value": "yes", "effect": "NoSchedule"}
    draft.pools(
        pool("open", requirements=[requirement(ZONE, *ZONES[:2])]),
        pool("closed", requirements=[requirement(ZONE, ZONES[2])], taints=[taint]),
    )
    name = draft.name()
    policy = chance.choice(("Honor", "Ignore"))
    constraint = _spread({"app": name}, ZONE, nodeTaintsPolicy=policy)
    draft.group({"topologySpreadConstraints": [constraint]}, name=name, number=draft.number(2, 5))


def pod_affinity(draft: Draft) -> None:
    """Pods that want company: of their own kind, of others, of nobody there is."""
    chance = draft.chance
    key = chance.choice((ZONE, HOSTNAME))
    name = draft.name()
    draft.group(
        {"affinity": _pods("podAffinity", _term({"app": name}, key))},
        name=name,
        number=draft.number(2, 6),
        cpu=chance.choice((100, 500, 1000)),
    )
    leader = draft.name()
    draft.group(name=leader, number=draft.number(1, 2))
    draft.group({"affinity": _pods("podAffinity", _term({"app": leader}, ZONE))})
    if chance.random() < 0.3:
        draft.group({"affinity": _pods("podAffinity", _term({"app": "nobody"}, ZONE))}, number=2)


def preferred_pod_affinity(draft: Draft) -> None:
    """Company that would be nice, and company that would not."""
    chance = draft.chance
    for kind in ("podAffinity", "podAntiAffinity"):
        name = draft.name()
        weighted = [
            (chance.randint(1, 100), _term({"app": name}, chance.choice((ZONE, HOSTNAME)))),
            (chance.randint(1, 100), _term({"app": "nobody"}, ZONE)),
        ]
        chosen = weighted[: chance.randint(1, 2)]
        draft.group(
            {"affinity": _preferred_pods(kind, *chosen)}, name=name, number=draft.number(2, 6)
        )


def anti_affinity(draft: Draft) -> None:
    """Pods that keep apart by node or by zone, from their own kind or from others."""
    chance = draft.chance
    name = draft.name()
    draft.group(
        {"affinity": _pods("podAntiAffinity", _term({"app": name}, HOSTNAME))},
        name=name,
        number=draft.number(2, 5),
    )
    if chance.random() < 0.5:
        name = draft.name()
        draft.group(
            {"affinity": _pods("podAntiAffinity", _term({"app": name}, ZONE))},
            name=name,
            number=chance.randint(2, 4),
        )
    loud = draft.name()
    draft.group(name=loud)
    key = chance.choice((ZONE, HOSTNAME))
    draft.group({"affinity": _pods("podAntiAffinity", _term({"app": loud}, key))})


def namespaces(draft: Draft) -> None:
    """Terms that look into other namespaces, by name, by label, or into all."""
    chance = draft.chance
    draft.add("namespaces", _namespace("blue", color="blue"), _namespace("red", color="red"))
    name = draft.name()
    for namespace in ("default", "blue", "red"):
        draft.group(name=name, labels={"app": name}, namespace=namespace, number=2)
    reach: Object = chance.choice(
        (
            {},
            {"namespaces": ["blue"]},
            {"namespaces": ["red", "default"]},
            {"namespaceSelector": {"matchLabels": {"color": "blue"}}},
            {"namespaceSelector": {}},
            {"namespaces": ["red"], "namespaceSelector": {"matchLabels": {"color": "blue"}}},
        )
    )
    kind = chance.choice(("podAffinity", "podAntiAffinity"))
    key = ZONE if kind == "podAffinity" else HOSTNAME
    draft.group(
        {"affinity": _pods(kind, _term({"app": name}, key, **reach))},
        namespace=chance.choice(("default", "blue")),
        number=draft.number(1, 4),
    )


# What pods take.


def containers(draft: Draft) -> None:
    """Init containers, sidecars, requests of the whole pod, overhead, a resize under way."""
    chance = draft.chance

    def asking(name: str, cpu: str, memory: str, **more: Any) -> Object:
        resources = {"requests": {"cpu": cpu, "memory": memory}}
        return {"name": name, "image": name, "resources": resources, **more}

    sidecar = asking("proxy", "250m", "256Mi", restartPolicy="Always")
    specs: list[dict[str, Any]] = [
        {"initContainers": [asking("init", "3", "1Gi")]},
        {"initContainers": [asking("init", "1", "6Gi"), sidecar]},
        {"initContainers": [sidecar, asking("init", "2", "2Gi")]},
        {"overhead": {"cpu": "500m", "memory": "512Mi"}},
        {"containers": [asking("one", "300m", "1Gi"), asking("two", "700m", "100Mi")]},
        {"containers": [asking("one", "1", "1Gi"), {"name": "free", "image": "x"}]},
        {"containers": [{"name": "nothing", "image": "x"}]},
    ]
    for spec in chance.sample(specs, 4):
        for one in draft.group():
            one["spec"].update(spec)
    whole = {"requests": {"cpu": "2500m", "memory": "3Gi"}}
    draft.group({"resources": whole}, cpu=500, memory=600, number=draft.number(1, 4))
    _default_pool(draft)
    resized = _running(draft)
    allocated = {"cpu": "2", "memory": "5Gi"}
    _stand(draft, pods=[resized])
    resized["status"]["containerStatuses"] = [
        {
            "name": "app",
            "image": "app",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "allocatedResources": allocated,
            "resources": {"requests": allocated},
        }
    ]


def odd_resources(draft: Draft) -> None:
    """GPUs, ephemeral storage, many tiny pods, and a resource that nobody has."""
    chance = draft.chance
    extra = [
        {"nvidia.com/gpu": str(chance.randint(1, 2))},
        {"ephemeral-storage": f"{chance.randint(1, 15)}Gi"},
        {"ephemeral-storage": "30Gi"},
        {"example.com/dongle": "1"},
    ]
    for resources in chance.sample(extra, 3):
        for one in draft.group(number=draft.number(1, 4)):
            asked = one["spec"]["containers"][0]["resources"]
            asked["requests"] |= resources
            asked["limits"] = {k: v for k, v in resources.items() if "/" in k}
    draft.group(cpu=10, memory=10, number=draft.number(5, 30))


def host_ports(draft: Draft) -> None:
    """Ports of the host: by address, by protocol, on every address."""
    chance = draft.chance
    forms: list[Object] = [
        {"hostPort": 8080},
        {"hostPort": 8080, "protocol": "UDP"},
        {"hostPort": 8080, "hostIP": "10.0.0.1"},
        {"hostPort": 8080, "hostIP": "10.0.0.2"},
        {"hostPort": 9090},
    ]
    for form in chance.sample(forms, 3):
        for one in draft.group(number=draft.number(1, 3)):
            port = {"containerPort": form["hostPort"], "protocol": "TCP", **form}
            one["spec"]["containers"][0]["ports"] = [port]


def impossible(draft: Draft) -> None:
    """Pods that nothing can hold, among pods that are easily placed."""
    chance = draft.chance
    draft.group(cpu=400_000, number=1)
    draft.group({"nodeSelector": {ZONE: "us-west-2z"}}, number=2)
    terms = [requirement(ARCH, "amd64"), requirement(ARCH, "arm64")]
    draft.group({"affinity": _node_affinity(terms)}, number=1)
    for one in draft.group(number=draft.number(2, 4)):
        one["spec"]["priority"] = chance.choice((-10, 0, 1000))


# What pools say.


def weights(draft: Draft) -> None:
    """Pools that differ by what they may buy, tried by weight."""
    chance = draft.chance
    draft.pools(
        pool(
            "spot",
            requirements=[requirement(CAPACITY_TYPE, "spot")],
            weight=chance.randint(1, 100),
        ),
        pool(
            "graviton",
            requirements=[requirement(ARCH, "arm64"), requirement(CAPACITY_TYPE, "on-demand")],
            weight=chance.randint(1, 100),
        ),
        pool(
            "large",
            requirements=[requirement(CPU, "7", operator="Gt")],
            weight=chance.randint(1, 100),
        ),
    )
    draft.group()
    draft.group({"nodeSelector": {CAPACITY_TYPE: "on-demand"}})
    draft.group({"nodeSelector": {ARCH: "amd64"}})


def limits(draft: Draft) -> None:
    """Pools that may not grow as far as the pods would need."""
    chance = draft.chance
    draft.pools(
        pool("first", limits={"cpu": str(chance.choice((4, 8, 20)))}, weight=50),
        pool("second", limits={"memory": f"{chance.choice((16, 64))}Gi"}, weight=10),
    )
    if chance.random() < 0.5:
        draft.pools(pool("unlimited"))
    draft.group(number=draft.number(2, 8))


def min_values(draft: Draft) -> None:
    """Claims that must keep a choice of types or families."""
    chance = draft.chance
    key, least = chance.choice(((TYPE, 5), (FAMILY, 3), (SIZE, 2), (TYPE, 12)))
    term = {**requirement(key, operator="Exists"), "minValues": least}
    draft.pools(pool("flexible", requirements=[term]))
    if chance.random() < 0.5:
        draft.settings["MIN_VALUES_POLICY"] = chance.choice(("BestEffort", "Strict"))
    draft.group()
    draft.group({"nodeSelector": {FAMILY: "m6i"}}, number=2)


def pool_requirements(draft: Draft) -> None:
    """Pools with every operator, of which one contradicts itself."""
    chance = draft.chance
    draft.pools(
        pool("not-c", requirements=[requirement(FAMILY, "c6i", "c7g", operator="NotIn")]),
        pool(
            "middle",
            requirements=[
                requirement(CPU, "2", operator="Gt"),
                requirement(CPU, "16", operator="Lt"),
                requirement(ARCH, "amd64"),
            ],
            weight=chance.randint(1, 100),
        ),
        pool("none", requirements=[requirement(ZONE, "us-west-2z")], weight=100),
    )
    draft.group()
    draft.group({"nodeSelector": {ZONE: chance.choice(ZONES)}})
    draft.group({"nodeSelector": {FAMILY: "c6i"}}, number=2)


def daemons(draft: Draft) -> None:
    """DaemonSets: everywhere, by selector, by affinity, with a port, not tolerating a taint."""
    chance = draft.chance
    forms: list[dict[str, Any]] = [
        {"tolerations": [{"operator": "Exists"}]},
        {"nodeSelector": {ARCH: "arm64"}},
        {"affinity": _node_affinity([requirement(CPU, "7", operator="Gt")])},
        {"affinity": _node_affinity([requirement(FAMILY, "c6i")], [requirement(FAMILY, "m6i")])},
        {"nodeSelector": {CAPACITY_TYPE: "spot"}},
        {},
    ]
    for number, form in enumerate(chance.sample(forms, chance.randint(1, 3))):
        container: dict[str, Any] = {
            "name": "agent",
            "image": "agent",
            "resources": {
                "requests": {"cpu": f"{chance.choice((100, 300, 700))}m", "memory": "300Mi"}
            },
        }
        if chance.random() < 0.2:
            container["ports"] = [{"containerPort": 8080, "hostPort": 8080, "protocol": "TCP"}]
        draft.add(
            "daemonSets",
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {
                    "name": f"agent-{number}",
                    "namespace": "kube-system",
                    "uid": f"agent-{number}",
                },
                "spec": {
                    "selector": {"matchLabels": {"agent": str(number)}},
                    "template": {
                        "metadata": {"labels": {"agent": str(number)}},
                        "spec": {"containers": [container], **form},
                    },
                },
            },
        )
    draft.group()
    draft.group()


def ignored_preferences(draft: Draft) -> None:
    """The same wishes where the settings say that they do not count."""
    draft.settings["PREFERENCE_POLICY"] = "Ignore"
    preferred_node_affinity(draft)
    preferred_pod_affinity(draft)
    name = draft.name()
    constraint = _spread({"app": name}, ZONE, whenUnsatisfiable="ScheduleAnyway")
    draft.group({"topologySpreadConstraints": [constraint]}, name=name)


# What is there already.

MOMENT = "2026-01-01T00:00:00Z"


def _stand(
    draft: Draft,
    *,
    stage: str = "initialized",
    pods: Sequence[Object] = (),
    taints_: Sequence[Object] = (),
    startup: Sequence[Object] = (),
    zone: str | None = None,
) -> str:
    """Add a node: `initialized`, `registered`, `launched` (a claim alone) or `unmanaged`."""
    chance = draft.chance
    kinds = [one for one in draft.world["instanceTypes"] if one["capacity"]["cpu"] in ("4", "8")]
    kind = chance.choice(kinds)
    number = len(draft.world.get("nodes", [])) + len(draft.world.get("nodeClaims", []))
    name, provider_id = f"node-{number}", f"aws:///zone/i-{number:017x}"
    place = chance.choice(kind["offerings"])["requirements"]
    labels = {one["key"]: one["values"][0] for one in kind["requirements"]}
    labels |= {**place, HOSTNAME: name}
    if zone:
        labels[ZONE] = zone
    capacity = dict(kind["capacity"])
    cpu, memory = int(capacity["cpu"]) * 1000, int(capacity["memory"][:-2])
    allocatable = {**capacity, "cpu": f"{cpu - 100}m", "memory": f"{memory - 10}Mi"}
    managed = stage != "unmanaged"
    if managed:
        labels["karpenter.sh/nodepool"] = "default"
        labels |= {"karpenter.sh/registered": "true"} if stage != "launched" else {}
        labels |= {"karpenter.sh/initialized": "true"} if stage == "initialized" else {}
        _claim(
            draft,
            f"claim-{number}",
            name,
            stage,
            labels,
            provider_id,
            (taints_, startup),
            {"capacity": capacity, "allocatable": allocatable},
        )
    if stage == "launched":
        return f"claim-{number}"
    present = [*taints_, *(startup if stage == "registered" else ())]
    draft.add(
        "nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
            "spec": {"providerID": provider_id, "taints": present},
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        },
    )
    for one in pods:
        one["spec"]["nodeName"] = name
        one["status"] = {"phase": "Running"}
    draft.add("pods", *pods)
    return name


def _claim(
    draft: Draft,
    name: str,
    node: str,
    stage: str,
    labels: Mapping[str, str],
    provider_id: str,
    taints_: tuple[Sequence[Object], Sequence[Object]],
    resources: Object,
) -> None:
    reached = ["Launched", *(("Registered",) if stage != "launched" else ())]
    reached += ["Initialized", "Ready"] if stage == "initialized" else []
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    own = {key: value for key, value in labels.items() if key != HOSTNAME}
    draft.add(
        "nodeClaims",
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": own},
            "spec": {
                "nodeClassRef": reference,
                "requirements": [],
                "taints": list(taints_[0]),
                "startupTaints": list(taints_[1]),
            },
            "status": {
                "providerID": provider_id,
                **({"nodeName": node} if stage != "launched" else {}),
                **resources,
                "conditions": [
                    {
                        "type": one,
                        "status": "True",
                        "reason": one,
                        "message": "",
                        "lastTransitionTime": MOMENT,
                    }
                    for one in reached
                ],
            },
        },
    )


def _running(draft: Draft, labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
    name = draft.name()
    return pod(
        f"runs-{name}",
        cpu=draft.chance.choice((100, 500, 1500)),
        memory=draft.chance.choice((256, 1024, 4096)),
        labels=labels or {"app": name},
        **spec,
    )


def _default_pool(draft: Draft) -> None:
    draft.pools(pool("default"))


def existing_nodes(draft: Draft) -> None:
    """Nodes with some room, managed and not, tainted, cordoned."""
    chance = draft.chance
    _default_pool(draft)
    for _ in range(chance.randint(1, 4)):
        _stand(
            draft,
            stage=chance.choice(("initialized", "initialized", "unmanaged")),
            pods=[_running(draft) for _ in range(chance.randint(0, 3))],
            taints_=chance.choice(
                ((), (), ({"key": "own", "value": "yes", "effect": "NoSchedule"},))
            ),
        )
    if chance.random() < 0.3:
        spec = draft.world["nodes"][-1]["spec"]
        spec["unschedulable"] = True
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        spec["taints"] = [*spec["taints"], cordon]
    draft.group()
    draft.group({"tolerations": [{"key": "own", "operator": "Exists"}]})
    name = draft.name()
    draft.group(
        {"topologySpreadConstraints": [_spread({"app": name}, ZONE)]},
        name=name,
        number=draft.number(2, 4),
    )


def coming_nodes(draft: Draft) -> None:
    """Nodes that are launched or registered but not ready, with taints that will go."""
    chance = draft.chance
    _default_pool(draft)
    startup = [{"key": "starting", "value": "up", "effect": "NoSchedule"}]
    for stage in ("launched", "registered", "launched")[: chance.randint(1, 3)]:
        _stand(draft, stage=stage, startup=startup if chance.random() < 0.5 else ())
    draft.group()
    draft.group({"nodeSelector": {ZONE: chance.choice(ZONES)}})


def running_neighbours(draft: Draft) -> None:
    """Pods that already run: those that repel, those that attract, those that count."""
    chance = draft.chance
    _default_pool(draft)
    app = {"app": draft.name()}
    repelling = _pods("podAntiAffinity", _term(app, chance.choice((ZONE, HOSTNAME))))
    _stand(draft, pods=[_running(draft, affinity=repelling)])
    _stand(draft, pods=[_running(draft, {"app": "star"}), _running(draft, app)])
    draft.group(labels=app, number=draft.number(1, 4))
    draft.group({"affinity": _pods("podAffinity", _term({"app": "star"}, ZONE))})
    constraint = _spread({"app": "star"}, ZONE)
    draft.group(
        {"topologySpreadConstraints": [constraint]},
        labels={"app": "star"},
        number=draft.number(1, 4),
    )


# Volumes.


def volumes(draft: Draft) -> None:
    """Bound volumes in zones, classes with topologies, volumes made per pod."""
    chance = draft.chance
    two = [{"matchLabelExpressions": [{"key": ZONE, "values": list(ZONES[:2])}]}]
    either = [{"matchLabelExpressions": [{"key": ZONE, "values": [one]}]} for one in ZONES[1:]]
    draft.storage_classes("anywhere")
    draft.storage_classes("two-zones", allowedTopologies=two)
    draft.storage_classes("either", allowedTopologies=either)
    for index in range(draft.number(1, 4)):
        _with_claims(
            draft, [_volume_claim(draft, f"data-{index}", chance.choice(("bound", "free")))]
        )
    if chance.random() < 0.4:
        _with_claims(
            draft,
            [_volume_claim(draft, f"pair-{n}", kind) for n, kind in enumerate(("bound", "free"))],
        )
    _ephemeral(
        draft, chance.choice(("two-zones", "either")), draft.group(number=draft.number(1, 3))
    )


def _ephemeral(draft: Draft, storage_class: str, pods: Sequence[Object]) -> None:
    """Give each pod a volume of its own, with the claim that the cluster makes of it."""
    asked = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    for one in pods:
        template = {"volumeClaimTemplate": {"spec": asked}}
        one["spec"]["volumes"] = [{"name": "own", "ephemeral": template}]
        name = one["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": one["metadata"]["uid"]}
        metadata = {
            "name": f"{name}-own",
            "namespace": one["metadata"]["namespace"],
            "uid": f"uid-{name}-own",
            "ownerReferences": [{**owner, "controller": True}],
        }
        claim = {"metadata": metadata, "spec": asked, "status": {"phase": "Pending"}}
        draft.add("persistentVolumeClaims", claim)


def _with_claims(draft: Draft, names: Sequence[str]) -> None:
    chosen = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    for one in draft.group(number=1):
        one["spec"]["volumes"] = chosen


def _volume_claim(draft: Draft, name: str, kind: str) -> str:
    chance = draft.chance
    spec: dict[str, Any] = {
        "storageClassName": chance.choice(("anywhere", "two-zones", "either")),
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    status = {"phase": "Pending"}
    if kind == "bound":
        spec["volumeName"] = f"pv-{name}"
        metadata["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        status = {"phase": "Bound"}
        zones = sorted(chance.sample(ZONES, chance.choice((1, 1, 2))))
        terms = [{"matchExpressions": [requirement(ZONE, zone)]} for zone in zones]
        draft.add(
            "persistentVolumes",
            {
                "metadata": {"name": f"pv-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"},
                    "storageClassName": spec["storageClassName"],
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                },
            },
        )
    draft.add("persistentVolumeClaims", {"metadata": metadata, "spec": spec, "status": status})
    return name


def volume_limits(draft: Draft) -> None:
    """A node that can attach a few volumes more, and pods that bring one each."""
    _default_pool(draft)
    draft.storage_classes("attached")
    name = _stand(draft)
    drivers = [{"name": DRIVER, "nodeID": name, "allocatable": {"count": 2}}]
    draft.add("csiNodes", {"metadata": {"name": name}, "spec": {"drivers": drivers}})
    _ephemeral(draft, "attached", draft.group(number=draft.number(3, 5), cpu=100, memory=100))


def volumes_and_spread(draft: Draft) -> None:
    """Volumes that pin some pods of a group that must spread."""
    draft.storage_classes("anywhere")
    name = draft.name()
    spec = {"topologySpreadConstraints": [_spread({"app": name}, ZONE)]}
    for index, zone in enumerate(ZONES):
        claim = f"{name}-claim-{index}"
        _volume_claim(draft, claim, "bound")
        volume = draft.world["persistentVolumes"][-1]
        terms = [{"matchExpressions": [requirement(ZONE, zone)]}]
        volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = terms
        draft.world["persistentVolumeClaims"][-1]["spec"]["storageClassName"] = "anywhere"
        for one in draft.group(spec, labels={"app": name}, number=1):
            one["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]


FEATURES: tuple[Feature, ...] = (
    plain,
    selectors,
    node_affinity,
    preferred_node_affinity,
    custom_labels,
    taints,
    zone_spread,
    hostname_spread,
    other_spread,
    spread_of_others,
    match_label_keys,
    taints_policy,
    pod_affinity,
    preferred_pod_affinity,
    anti_affinity,
    namespaces,
    containers,
    odd_resources,
    host_ports,
    impossible,
    weights,
    limits,
    min_values,
    pool_requirements,
    daemons,
    ignored_preferences,
    existing_nodes,
    coming_nodes,
    running_neighbours,
    volumes,
    volume_limits,
    volumes_and_spread,
)
