"""The demo: Joiner's main use end to end, for a person to watch and for a test to assert.

`scenario` acts and asserts. `observation` is the visible state at one moment. `liveview` draws
it. `run` runs them on a testbed. This is the only package that knows what Joiner promises.
"""
