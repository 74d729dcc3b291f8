"""Nodes of a real control plane whose kubelet kwok simulates."""

from __future__ import annotations

from typing import Any

ALLOCATABLE = {"cpu": "4", "memory": "16Gi", "pods": "110"}


def simulated_node(name: str) -> dict[str, Any]:
    """A node with 4 CPU, which kwok makes Ready."""
    return {
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "status": {"allocatable": ALLOCATABLE, "capacity": ALLOCATABLE},
    }
