"""The AWS of the testbed: a small region on one loopback port.

Every AWS API is answered at one URL. moto answers what it does well (IAM, SQS,
EventBridge, SSM, VPCs and security groups); what it lacks, or does only
partly, is answered here, one module per AWS noun. `backends` is the only
module that touches moto's internals, `wire` the only one that knows the
protocols. A call that neither answers fails loudly and by name.

Beside the AWS APIs the same port serves `/testbed/…`, the controls of the
test: faults, capacity, interruptions, and what is left (see `control`), and
`/v1/credentials`, the EKS Pod Identity agent.

Prices are made from a formula (`prices`). They are not AWS's prices.
"""

from testbed.cloud.cloud import Cloud
from testbed.cloud.control import CloudControl

__all__ = ["Cloud", "CloudControl"]
