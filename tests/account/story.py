"""The story itself: up, pods in, nodes ready, pods out, nodes gone, and down in any case."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.clusterapi import ClusterApi
from tests.account.allowance import Allowance, AllowanceSpentError

STACK = "account"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
PODS = 10
LOOK_SECONDS = 10.0


class Engine(Protocol):
    """What the story needs of Pulumi's engine."""

    def up(self, stack: str, config: Mapping[str, str]) -> object:
        """Make everything."""

    def destroy(self, stack: str) -> object:
        """Take it down."""

    def interrupt(self) -> None:
        """Stop what is under way."""


@dataclass(kw_only=True)
class Story:
    """One run. Whatever happens in it, `tell` ends with a destroy."""

    engine: Engine
    settings: Mapping[str, str]
    allowance: Allowance
    find: Callable[[], ClusterApi]
    """Finds the cluster's API, once there is a cluster."""

    say: Callable[[str], None] = print
    look_seconds: float = LOOK_SECONDS
    _spent: AllowanceSpentError | None = field(default=None, init=False)

    def tell(self) -> None:
        """Play it; raises `AllowanceSpentError`, or what went wrong, after the destroy."""
        try:
            with self._watched():
                self.engine.up(STACK, self.settings)
                cluster = self.find()
                self._pods_in(cluster)
                self._pods_out(cluster)
        finally:
            # There is no allowance for this: what is up costs more than what comes down.
            self.engine.destroy(STACK)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Interrupt the engine when the allowance is spent; raises it instead of what follows."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(self.look_seconds):
                try:
                    self.allowance.check()
                except AllowanceSpentError as spent:
                    self._spent = spent
                    self.engine.interrupt()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        except Exception as error:
            if self._spent is not None:
                raise self._spent from error
            raise
        finally:
            ended.set()
            watcher.join()

    def _pods_in(self, cluster: ClusterApi) -> None:
        self.say(f"{PODS} pods that fit on none of the nodes there are")
        cluster.request("POST", DEPLOYMENTS, workload(PODS))
        self._until(lambda: ready(cluster) == PODS, "the pods run")
        claims = cluster.list(NODE_CLAIMS)
        names = ", ".join(claim["metadata"]["name"] for claim in claims)
        self.say(f"they run on {names}")

    def _pods_out(self, cluster: ClusterApi) -> None:
        cluster.delete(f"{DEPLOYMENTS}/story")
        self._until(lambda: not cluster.list(NODE_CLAIMS), "the nodes are gone")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            if self._spent is not None:
                raise self._spent
            time.sleep(min(1.0, self.look_seconds))
        self.say(what)


def ready(cluster: ClusterApi) -> int:
    """Return how many of the story's pods are ready."""
    deployment = cluster.get(f"{DEPLOYMENTS}/story") or {}
    return int((deployment.get("status") or {}).get("readyReplicas", 0))


def workload(replicas: int) -> dict[str, Any]:
    """Return a Deployment whose pods run on Joiner's nodes alone."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "story"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "story"}},
            "template": {
                "metadata": {"labels": {"app": "story"}},
                "spec": {
                    "nodeSelector": {"karpenter.sh/nodepool": "default"},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {
                            "name": "pause",
                            "image": "public.ecr.aws/eks-distro/kubernetes/pause:3.10",
                            "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
                        }
                    ],
                },
            },
        },
    }
