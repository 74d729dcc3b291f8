"""The demo: Joiner's main use end to end, for a person to watch and for a test to assert.

`scenario` acts and asserts. `observation` is the visible state at one moment. `liveview` draws
it. `run` runs the scenario on a testbed. `playground` and `faults` are for users who try Joiner
on a testbed. No other package of the testbed knows what Joiner does.
"""
