"""`make aws`: the story on the AWS account of your credentials. It costs money: about $2.

    python -m tests.account --region us-west-2 --image registry.example.com/joiner:1 --spend 5

Makes a cluster from nothing and Joiner on it, runs ten pods, and takes it all down; when more
than `--spend` dollars are spent, by list prices rounded up, or `--hours` have gone by, it is taken
down at once. At the end it looks for whatever bears the installation's tag, terminates what runs,
and exits with 1 if anything is left. Needs what README's "On a real cluster" needs.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from infra.clusterapi import ClusterApi, ClusterLocation
from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins
from tests.account.allowance import Allowance
from tests.account.story import STACK, Story
from tests.account.sweep import machines, sweep

INSTALLATION = f"organization/joiner/{STACK}"


def main(argv: list[str]) -> int:
    """Play the story on an account, and sweep after it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--region", required=True)
    parser.add_argument("--spend", type=float, required=True, help="dollars, at the most")
    parser.add_argument("--hours", type=float, default=2.0, help="at the most (2)")
    parser.add_argument("--cluster-name", default="joiner-story")
    parser.add_argument("--image", help="of the controller; built and pushed when left out")
    parser.add_argument("--only-sweep", action="store_true", help="look for what a run left")
    parser.add_argument("--state", type=Path, default=Path.home() / ".joiner-story")
    chosen = parser.parse_args(argv)

    location = ClusterLocation(chosen.cluster_name, chosen.region)
    if not chosen.only_sweep:
        story = Story(
            # Its state is kept, so that a run that was killed can be taken down by another one.
            engine=PulumiEngine(directory=chosen.state, project=CHECKOUT, plugins=Plugins.REAL),
            settings={
                "cluster": "create",
                "clusterName": chosen.cluster_name,
                "region": chosen.region,
                **({"image": chosen.image} if chosen.image else {}),
            },
            allowance=Allowance(
                dollars=chosen.spend,
                lasting=timedelta(hours=chosen.hours),
                clock=lambda: datetime.now(UTC),
                machines=lambda: machines(location.client, INSTALLATION),
            ),
            find=lambda: ClusterApi.find(location),
        )
        try:
            story.tell()
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
