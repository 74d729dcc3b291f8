"""Features about the resources of pods and daemons."""

from __future__ import annotations

from typing import Any

from bench.parity.generated.draft import CPU, Draft, required_affinity
from bench.parity.generated.existing import default_pool, running_pod, stand
from bench.parity.worlds import ARCH, CAPACITY_TYPE, FAMILY, ZONE, Object, requirement


def containers(draft: Draft) -> None:
    """Add init containers, sidecars, pod-level requests, overhead, a resize in progress."""
    chance = draft.chance

    def make_container(name: str, cpu: str, memory: str, **more: Any) -> Object:
        resources = {"requests": {"cpu": cpu, "memory": memory}}
        return {"name": name, "image": name, "resources": resources, **more}

    sidecar = make_container("proxy", "250m", "256Mi", restartPolicy="Always")
    specs: list[dict[str, Any]] = [
        {"initContainers": [make_container("init", "3", "1Gi")]},
        {"initContainers": [make_container("init", "1", "6Gi"), sidecar]},
        {"initContainers": [sidecar, make_container("init", "2", "2Gi")]},
        {"overhead": {"cpu": "500m", "memory": "512Mi"}},
        {
            "containers": [
                make_container("one", "300m", "1Gi"),
                make_container("two", "700m", "100Mi"),
            ]
        },
        {"containers": [make_container("one", "1", "1Gi"), {"name": "free", "image": "x"}]},
        {"containers": [{"name": "nothing", "image": "x"}]},
    ]
    for spec in chance.sample(specs, 4):
        for waiting in draft.group():
            waiting["spec"].update(spec)
    whole = {"requests": {"cpu": "2500m", "memory": "3Gi"}}
    draft.group({"resources": whole}, cpu=500, memory=600, number=draft.number(1, 4))
    default_pool(draft)
    resized = running_pod(draft)
    allocated = {"cpu": "2", "memory": "5Gi"}
    stand(draft, pods=[resized])
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
    """Add GPUs, ephemeral storage, many tiny pods, and a resource that no node has."""
    chance = draft.chance
    extra = [
        {"nvidia.com/gpu": str(chance.randint(1, 2))},
        {"ephemeral-storage": f"{chance.randint(1, 15)}Gi"},
        {"ephemeral-storage": "30Gi"},
        {"example.com/dongle": "1"},
    ]
    for resources in chance.sample(extra, 3):
        for waiting in draft.group(number=draft.number(1, 4)):
            asked = waiting["spec"]["containers"][0]["resources"]
            asked["requests"] |= resources
            asked["limits"] = {k: v for k, v in resources.items() if "/" in k}
    draft.group(cpu=10, memory=10, number=draft.number(5, 30))


def host_ports(draft: Draft) -> None:
    """Add host ports: per address, per protocol, and on every address."""
    chance = draft.chance
    forms: list[Object] = [
        {"hostPort": 8080},
        {"hostPort": 8080, "protocol": "UDP"},
        {"hostPort": 8080, "hostIP": "10.0.0.1"},
        {"hostPort": 8080, "hostIP": "10.0.0.2"},
        {"hostPort": 9090},
    ]
    for form in chance.sample(forms, 3):
        for waiting in draft.group(number=draft.number(1, 3)):
            port = {"containerPort": form["hostPort"], "protocol": "TCP", **form}
            waiting["spec"]["containers"][0]["ports"] = [port]


def impossible(draft: Draft) -> None:
    """Add pods that fit on no node, among pods that are easy to place."""
    chance = draft.chance
    draft.group(cpu=400_000, number=1)
    draft.group({"nodeSelector": {ZONE: "us-west-2z"}}, number=2)
    terms = [requirement(ARCH, "amd64"), requirement(ARCH, "arm64")]
    draft.group({"affinity": required_affinity(terms)}, number=1)
    for waiting in draft.group(number=draft.number(2, 4)):
        waiting["spec"]["priority"] = chance.choice((-10, 0, 1000))


def daemons(draft: Draft) -> None:
    """Add DaemonSets: everywhere, by selector, by affinity, with a port, without a toleration."""
    chance = draft.chance
    forms: list[dict[str, Any]] = [
        {"tolerations": [{"operator": "Exists"}]},
        {"nodeSelector": {ARCH: "arm64"}},
        {"affinity": required_affinity([requirement(CPU, "7", operator="Gt")])},
        {"affinity": required_affinity([requirement(FAMILY, "c6i")], [requirement(FAMILY, "m6i")])},
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
