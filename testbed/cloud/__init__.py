"""The test cloud: one emulated AWS region on one loopback port.

One URL serves every AWS API. moto answers the APIs it emulates well (IAM, SQS,
EventBridge, SSM, VPCs and security groups). This package answers operations that
moto lacks or emulates only partly, with one module per type of AWS resource. `protocol.backends`
is the only module that imports moto. `protocol.wire` reads requests and writes responses in AWS's
wire protocols. A call that neither moto nor this package answers fails with an error that
names the operation.

Beside the AWS APIs, the same port serves two more:

- `/testbed/…`, the control API for tests: faults, capacity, interruptions, and the
  resources left behind (see `control`);
- `/v1/credentials`, the EKS Pod Identity agent.

On-demand prices are those that AWS publishes, spot prices come from a formula (`prices`).

Terms:

    World     the state of the region that moto does not hold, and its settings
    capacity pool  EC2's unused instances of one instance type in one zone, on-demand or spot
    fault     an error or delay that a test causes in the next matching calls
    seeded    of a resource: created at the start of the cloud
"""

from testbed.cloud.cloud import Cloud
from testbed.cloud.control import CloudControl

__all__ = ["Cloud", "CloudControl"]
