"""Kubeconfigs with one context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def kubeconfig_in(
    folder: Path,
    *,
    server: str = "https://127.0.0.1:1",
    user: dict[str, Any] | None = {"token": "secret"},  # noqa: B006  never changed
    **cluster: Any,
) -> Path:
    """Write a kubeconfig.

    Keyword arguments such as `proxy_url` are added to its cluster's entry.
    """
    entry = {"server": server} | {key.replace("_", "-"): value for key, value in cluster.items()}
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
                "clusters": [{"name": "b", "cluster": entry}],
                "users": [{"name": "c", "user": user}],
            }
        )
    )
    return path
