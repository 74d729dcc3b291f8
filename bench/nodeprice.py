"""What a node of the benchmarks costs besides its instance.

Joiner counts these costs when it decides. Karpenter knows the price of the instance only. The
answers of both are judged by the whole price.
"""

from __future__ import annotations

import argparse

VOLUMES = 20 * 0.08 / 730
"""$/h of a node's root volume: 20 GiB of gp3, as AL2023 nodes have, at $0.08 per GiB and month.

Nodes are in private subnets, so there is no charge for a public address.
"""


def add_fee(parser: argparse.ArgumentParser) -> None:
    """Add the option `--node-fee`: what a node costs besides instance and volume, in $/h."""
    parser.add_argument(
        "--node-fee", type=float, default=0.0, help="$/h per node besides instance and volume (0)"
    )
