"""Features about what a node has and its pods take: resources, host ports, the number of pods."""

from __future__ import annotations

from bench.kubescheduler.generated.draft import DEVICE, Draft, make_pod
from bench.parity.worlds import Object

ADDRESSES = ("", "0.0.0.0", "127.0.0.1", "10.0.0.1")


def tight(draft: Draft) -> None:
    """Fill nodes so that the pending pod fits on few of them."""
    for node in draft.nodes:
        for _ in range(draft.chance.randint(0, 3)):
            draft.run(node)
    request(draft, draft.chance.choice((1000, 1500, 1900, 2000, 3000)))


def request(draft: Draft, cpu: int) -> None:
    """Set the CPU request of the pending pod, in millicores."""
    draft.containers[0]["resources"] = {"requests": {"cpu": f"{cpu}m", "memory": "128Mi"}}


def init_containers(draft: Draft) -> None:
    """Add init containers and sidecars in any order, to the pending pod or to a running one."""
    tight(draft)
    _prepare(draft, draft.pod)
    if draft.likely(0.5):
        _prepare(draft, draft.chance.choice(draft.running or [draft.run()]))


def _prepare(draft: Draft, pod: Object) -> None:
    chance = draft.chance
    made = []
    for number in range(chance.randint(1, 3)):
        requests = {"cpu": f"{chance.choice((100, 500, 1000, 1500, 2500))}m"}
        container: Object = {"name": f"init-{number}", "image": "init"}
        container["resources"] = {"requests": requests}
        if chance.random() < 0.5:
            container["restartPolicy"] = "Always"
        made.append(container)
    pod["spec"]["initContainers"] = made


def overhead(draft: Draft) -> None:
    """Add the overhead of a RuntimeClass, with init containers or without."""
    (init_containers if draft.likely(0.4) else tight)(draft)
    pod = draft.chance.choice([draft.pod, *draft.running])
    pod["spec"]["overhead"] = {"cpu": f"{draft.chance.choice((100, 600, 1100))}m"}
    pod["spec"]["runtimeClassName"] = "heavy"


def whole_pod(draft: Draft) -> None:
    """State requests, or limits alone, for a pod as a whole, beside those of its containers."""
    (init_containers if draft.likely(0.4) else tight)(draft)
    chance = draft.chance
    for pod in (draft.pod, *draft.running):
        if pod is draft.pod or draft.likely(0.3):
            given = {"cpu": f"{chance.choice((2600, 3000, 3500))}m", "memory": "1Gi"}
            if draft.likely(0.3):
                del given[chance.choice(("cpu", "memory"))]
            kind = chance.choice(("requests", "requests", "limits"))
            pod["spec"]["resources"] = {kind: given}


def limits_alone(draft: Draft) -> None:
    """State limits without requests, or without one of two; the API server derives requests."""
    tight(draft)
    chance = draft.chance
    limits = {"cpu": chance.choice(("1500m", "2500m", "3")), "memory": "1Gi"}
    draft.containers[0]["resources"] = {"limits": limits}
    if draft.likely(0.5):
        draft.containers[0]["resources"]["requests"] = {"cpu": "100m"}


def extended_resources(draft: Draft) -> None:
    """Request devices, huge pages and local storage, which some nodes lack."""
    chance = draft.chance
    for node in draft.nodes:
        if draft.likely(0.6):
            for size in (node["status"]["allocatable"], node["status"]["capacity"]):
                size[DEVICE] = "2"
        if draft.likely(0.4):
            node["status"]["allocatable"]["hugepages-2Mi"] = "64Mi"
        if draft.likely(0.5):
            container = draft.run(node)["spec"]["containers"][0]
            _take(container, chance.choice((DEVICE, "hugepages-2Mi", "ephemeral-storage")), 0)
    for resource in chance.sample((DEVICE, "hugepages-2Mi", "ephemeral-storage"), 2):
        _take(draft.containers[0], resource, chance.randint(0, 2))
    if draft.likely(0.3):
        init: Object = {"name": "init", "image": "init", "resources": {"requests": {"cpu": "1m"}}}
        _take(init, DEVICE, chance.randint(1, 3))
        draft.spec["initContainers"] = [init]


def _take(container: Object, resource: str, size: int) -> None:
    amounts = {
        DEVICE: ("0", "1", "2", "3"),
        "hugepages-2Mi": ("2Mi", "32Mi", "64Mi", "128Mi"),
        "ephemeral-storage": ("1Gi", "12Gi", "20Gi", "21Gi"),
    }
    resources = container["resources"]
    resources.setdefault("requests", {})[resource] = amounts[resource][size]
    if resource != "ephemeral-storage":
        resources.setdefault("limits", {})[resource] = amounts[resource][size]


def number_of_pods(draft: Draft) -> None:
    """Limit the number of pods of nodes; ended pods do not count, terminating ones do."""
    for node in draft.nodes:
        number = draft.chance.randint(0, 3)
        for _ in range(number):
            _end_or_not(draft, draft.run(node))
        size = str(max(1, number + draft.chance.randint(-1, 1)))
        node["status"]["allocatable"]["pods"] = size


def _end_or_not(draft: Draft, pod: Object) -> None:
    state = draft.chance.choice(("runs", "ended", "failed", "terminating", "pending"))
    if state == "terminating":
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    phase = {"ended": "Succeeded", "failed": "Failed", "pending": "Pending"}.get(state, "Running")
    pod["status"] = {"phase": phase}


def ended_pods(draft: Draft) -> None:
    """Fill nodes with pods of which some have ended or are terminating."""
    tight(draft)
    for pod in draft.running:
        _end_or_not(draft, pod)


def resized_pods(draft: Draft) -> None:
    """Fill nodes with pods that are being resized: larger, smaller, or infeasibly."""
    tight(draft)
    chance = draft.chance
    for pod in draft.running:
        held = {"cpu": chance.choice(("200m", "1500m", "2")), "memory": "128Mi"}
        status = {
            "name": "app", "image": "app", "imageID": "", "ready": True, "restartCount": 0,
            "allocatedResources": held,
            "resources": {"requests": held if draft.likely(0.7) else {"cpu": "300m"}},
        }  # fmt: skip
        pod["status"]["containerStatuses"] = [status]
        reason = chance.choice(("", "Deferred", "Infeasible"))
        if reason:
            condition = {"type": "PodResizePending", "status": "True", "reason": reason}
            pod["status"]["conditions"] = [condition]


def host_ports(draft: Draft) -> None:
    """Open host ports by protocol and address, in containers, sidecars and init containers."""
    for node in draft.nodes:
        for _ in range(draft.chance.randint(0, 2)):
            _open_ports(draft, draft.run(node))
    _open_ports(draft, draft.pod)
    if draft.likely(0.2):
        draft.spec["hostNetwork"] = True


def _open_ports(draft: Draft, pod: Object) -> None:
    chance = draft.chance
    ports = []
    for number in sorted(chance.sample((8080, 8081), chance.randint(1, 2))):
        port: Object = {"containerPort": number, "hostPort": number}
        if draft.likely(0.6):
            port["hostIP"] = chance.choice(ADDRESSES)
        if draft.likely(0.6):
            port["protocol"] = chance.choice(("TCP", "UDP", "SCTP"))
        ports.append(port)
    where = chance.choice(("container", "container", "sidecar", "init"))
    if where == "container":
        pod["spec"]["containers"][0]["ports"] = ports
        return
    container: Object = {"name": "beside", "image": "beside", "ports": ports}
    if where == "sidecar":
        container["restartPolicy"] = "Always"
    pod["spec"]["initContainers"] = [container]


def best_effort(draft: Draft) -> None:
    """Request nothing, on nodes that are full or whose pods have taken more than they have."""
    draft.containers[0]["resources"] = {}
    for node in draft.nodes:
        if draft.likely(0.7):
            full = make_pod("", draft.chance, cpu=int(node["status"]["allocatable"]["cpu"]) * 1000)
            draft.run(node)["spec"]["containers"] = full["spec"]["containers"]
        if draft.likely(0.3):
            draft.run(node)
    if draft.likely(0.5):
        resource = draft.chance.choice(("cpu", "memory", DEVICE))
        draft.containers[0]["resources"] = {"requests": {resource: "0"}}
        if resource == DEVICE:
            draft.containers[0]["resources"]["limits"] = {resource: "0"}
