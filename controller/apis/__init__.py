"""The types of Kubernetes objects, each with the fields that the controller reads.

The types mirror the Kubernetes JSON. A field that the controller does not read is not declared and
is dropped while decoding, which saves memory. The package makes no decisions and does no I/O.
"""
