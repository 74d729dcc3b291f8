"""The steps of the test run: up, scale up, nodes ready, scale down, nodes gone, destroy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.account.allowance import Allowance, AllowanceSpentError
from infra.clusterapi import ClusterApi

STACK = "account"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
PODS = 10
POLL_SECONDS = 10.0


class Engine(Protocol):
    """The part of Pulumi's engine that the run needs."""

    def up(self, stack: str, config: Mapping[str, str]) -> object:
        """Create every resource of the stack."""

    def destroy(self, stack: str) -> object:
        """Destroy the stack."""

    def interrupt(self) -> None:
        """Cancel the operation in progress."""


@dataclass(kw_only=True)
class Story:
    """One run. `run` always ends with a destroy, whatever happens before it."""

    engine: Engine
    settings: Mapping[str, str]
    allowance: Allowance
    find: Callable[[], ClusterApi]
    """Returns the cluster's API, once the cluster exists."""

    say: Callable[[str], None] = print
    poll_seconds: float = POLL_SECONDS
    _spent: AllowanceSpentError | None = field(default=None, init=False)

    def run(self) -> None:
        """Run all steps. Raises `AllowanceSpentError` or the run's error after the destroy."""
        try:
            with self._watched():
                self.engine.up(STACK, self.settings)
                cluster = self.find()
                self._pods_in(cluster)
                self._pods_out(cluster)
        finally:
            # The destroy has no limit: leaving the stack up costs more than destroying it.
            self.engine.destroy(STACK)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the block runs, interrupt the engine once the allowance is spent.

        An error of the block is then raised as `AllowanceSpentError`.
        """
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(self.poll_seconds):
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
            time.sleep(min(1.0, self.poll_seconds))
        self.say(what)


def ready(cluster: ClusterApi) -> int:
    """Return how many of the run's pods are ready."""
    deployment = cluster.get(f"{DEPLOYMENTS}/story") or {}
    return int((deployment.get("status") or {}).get("readyReplicas", 0))


def workload(replicas: int) -> dict[str, Any]:
    """Return the manifest of a Deployment whose pods run only on Joiner's nodes."""
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
