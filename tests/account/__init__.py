"""The story on an AWS account: from nothing to nodes and back, within a budget and a time.

* `allowance`   what may be spent, in money and in time
* `story`       up, pods in, nodes ready, pods out, nodes gone, down
* `sweep`       what still bears the installation's tag, found and taken away
"""
