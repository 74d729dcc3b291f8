"""Topology rules (spread, affinity and anti-affinity) and the pods that each rule counts."""
