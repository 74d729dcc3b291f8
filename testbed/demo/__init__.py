"""The main job from end to end, for a person to see and for a test to assert.

`scenario` acts and claims, `observation` is what can be seen at one moment, `liveview` draws it,
`run` puts them on a testbed. This is the one room that knows what Joiner promises.
"""
