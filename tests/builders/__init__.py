"""Builders of test objects. Each has defaults, so that a test states only its scenario.

`make_pod(cpu="2")` returns a whole Pod. Three rules hold for every builder:

- What a scenario often varies is an option in snake_case: `make_pod(node="n1", labels={...})`.
- Every other field is given by its name in Python or in a manifest. A keyword is a field of the
  metadata; `spec=` and `status=` take mappings: `make_pod(uid="u1", spec={"priority": 7})`. A field
  that the controller does not read is a `TypeError`.
- The last keyword wins: the mappings replace what the options and defaults say. So a file with a
  scenario of its own writes `partial(make_pod, cpu="100m")`, and a test may still give `cpu`.

`changed` returns a copy of any object with other fields.
"""

from tests.builders.fields import changed, fields_of, true
from tests.builders.instancetypes import ZONES, make_offering, make_type, make_types
from tests.builders.nodepools import CLASS, make_nodeclass, make_nodepool
from tests.builders.nodes import make_launched, make_node, make_nodeclaim
from tests.builders.pods import (
    by_hostname,
    make_pod,
    make_pods,
    near,
    owned_by,
    selector,
    spread,
)
from tests.builders.requirements import needs, taint, tolerate
from tests.builders.snapshots import make_snapshot
from tests.builders.workloads import make_budget, make_daemonset, make_namespace, make_replicaset

__all__ = [
    "CLASS",
    "ZONES",
    "by_hostname",
    "changed",
    "fields_of",
    "make_budget",
    "make_daemonset",
    "make_launched",
    "make_namespace",
    "make_node",
    "make_nodeclaim",
    "make_nodeclass",
    "make_nodepool",
    "make_offering",
    "make_pod",
    "make_pods",
    "make_replicaset",
    "make_snapshot",
    "make_type",
    "make_types",
    "near",
    "needs",
    "owned_by",
    "selector",
    "spread",
    "taint",
    "tolerate",
    "true",
]
