"""`python -m testbed.cloud`: the cloud as a process of its own."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from testbed.cloud.cloud import Cloud

PARENT_CHECK = 1.0
"""Interval between checks that the parent process still runs, in seconds."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cloud", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--region", default="us-west-2", help="AWS region")
    parser.add_argument("--cluster-name", default="joiner", help="name of the EKS cluster")
    parser.add_argument("--cluster-endpoint", required=True, help="URL of the API server")
    parser.add_argument(
        "--cluster-ca", required=True, help="CA certificate of the API server: PEM, base64-encoded"
    )
    parser.add_argument("--kubernetes-version", default="1.37", help="version of the EKS cluster")
    parser.add_argument("--oidc-issuer", required=True, help="issuer of service account tokens")
    parser.add_argument(
        "--kubeconfig", type=Path, help="kubeconfig of the cluster that reviews tokens"
    )
    parser.add_argument(
        "--account",
        choices=("cluster", "empty"),
        default="cluster",
        help="what the account has at the start: a network with an EKS cluster, or nothing",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM, SIGINT or the exit of the parent process, then exit with code 0.

    Prints one line of JSON to stdout once it serves: `{"url": …}`.
    """
    chosen = arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    parent = os.getppid()
    cloud = Cloud(
        region=chosen.region,
        port=chosen.port,
        cluster_name=chosen.cluster_name,
        cluster_endpoint=chosen.cluster_endpoint,
        cluster_ca=chosen.cluster_ca,
        kubernetes_version=chosen.kubernetes_version,
        oidc_issuer=chosen.oidc_issuer,
        has_cluster=chosen.account == "cluster",
        kubeconfig=chosen.kubeconfig,
    )
    cloud.start()
    print(json.dumps({"url": cloud.url}), flush=True)
    while not stopping.wait(PARENT_CHECK) and os.getppid() == parent:
        pass
    # os._exit: connected clients in a long poll would otherwise delay the exit.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
