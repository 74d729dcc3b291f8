"""A test run on an AWS account: from nothing to nodes and back, within a budget and a time limit.

* `allowance`   limits on money and time
* `story`       the steps: deploy, scale up, wait for nodes, scale down, wait for removal, destroy
* `sweep`       terminates instances that still carry the installation's tag, reports the rest
"""
