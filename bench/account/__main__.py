"""`make aws`: the test run on the AWS account of your credentials. It costs about $2.

    python -m bench.account --region us-west-2 --image registry.example.com/joiner:1 --spend 5

Creates a cluster with Joiner, runs ten pods, and destroys everything. If the run has spent more
than `--spend` dollars, at list prices rounded up, or takes longer than `--hours`, it destroys the
stack at once. At the end the run looks for resources with the installation's tag and terminates
running instances. It exits with 1 if anything is left. For the prerequisites, see
docs/how-to/install.md; the run creates its own cluster.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.account.allowance import Allowance
from bench.account.story import STACK, Story
from bench.account.sweep import instances, sweep
from bench.arguments import make_parser
from infra.clusterapi import ClusterApi, ClusterLocation
from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins

INSTALLATION = f"organization/joiner/{STACK}"


def main(argv: list[str]) -> int:
    """Run the test on an account, and sweep afterwards; return the exit code."""
    parser = make_parser("bench.account", __doc__)
    parser.add_argument("--region", required=True, help="AWS region of the run")
    parser.add_argument("--spend", type=float, required=True, help="limit in dollars")
    parser.add_argument("--hours", type=float, default=2.0, help="limit in hours (2)")
    parser.add_argument(
        "--cluster-name", default="joiner-story", help="name of the new cluster (joiner-story)"
    )
    parser.add_argument(
        "--public-access-cidrs",
        default="0.0.0.0/0",
        help="networks that may reach the API server (0.0.0.0/0)",
    )
    parser.add_argument("--image", help="image of the controller; built and pushed if omitted")
    parser.add_argument(
        "--only-sweep",
        action="store_true",
        help="only terminate instances of an earlier run, and report what it left",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path.home() / ".joiner-story",
        help="folder of the Pulumi state (~/.joiner-story)",
    )
    chosen = parser.parse_args(argv)

    location = ClusterLocation(chosen.cluster_name, chosen.region)
    if not chosen.only_sweep:
        story = Story(
            # The state is kept so that a later run can destroy the resources of a killed one.
            engine=PulumiEngine(directory=chosen.state, project=CHECKOUT, plugins=Plugins.REAL),
            settings={
                "cluster": "create",
                "clusterName": chosen.cluster_name,
                "publicAccessCidrs": chosen.public_access_cidrs,
                "region": chosen.region,
                **({"image": chosen.image} if chosen.image else {}),
            },
            allowance=Allowance(
                dollars=chosen.spend,
                lasting=timedelta(hours=chosen.hours),
                clock=lambda: datetime.now(UTC),
                instances=lambda: instances(location.client, INSTALLATION),
            ),
            find=lambda: ClusterApi.find(location),
        )
        try:
            story.run()
        finally:
            print(f"about ${story.allowance.spent:.2f}, by list prices rounded up")
            left = sweep(location.client, INSTALLATION, print)
    else:
        left = sweep(location.client, INSTALLATION, print)
    for arn in left:
        print(f"left: {arn}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
