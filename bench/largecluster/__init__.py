"""Measure a controller in a large cluster: start, memory, and 1,000 pod events per second.

* `opening`           what runs outside the controller while hundreds of nodes launch at once
* `observedreplica`   the measured process: a controller that records its own delays
"""
