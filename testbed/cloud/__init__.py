"""The test cloud: one emulated AWS region on one loopback port.

One URL serves every AWS API. moto answers the APIs it emulates well (IAM, SQS,
EventBridge, SSM, VPCs and security groups). This package answers operations that
moto lacks or emulates only partly, with one module per AWS noun. `backends` is the
only module that touches moto's internals. `wire` is the only module that knows the
AWS wire protocols. A call that neither answers fails with an error that names it.

Beside the AWS APIs, the same port serves two more:

- `/testbed/…`, the control API for tests: faults, capacity, interruptions, and the
  resources left behind (see `control`);
- `/v1/credentials`, the EKS Pod Identity agent.

Prices come from a formula (`prices`). They are not AWS's prices.
"""

from testbed.cloud.cloud import Cloud
from testbed.cloud.control import CloudControl

__all__ = ["Cloud", "CloudControl"]
