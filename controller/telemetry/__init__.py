"""The controller's telemetry: metrics, events and logs.

Metrics, events and log fields use Karpenter's names where Karpenter has the same. Log fields with
the name of a secret are redacted. The mirror is the cluster's objects, cached in memory
(`state.cluster`). Amounts of resources are in thousandths of the resource's unit, such as
millicores; metrics are in whole units.
"""
