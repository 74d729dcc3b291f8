"""The Pulumi program: creates what the controller needs to launch nodes, and deletes it.

There is one component per noun: roles, access, the interruption queue, discovery tags, custom
resources, the controller, NodePools. Components do not import one another. `joiner` composes them
into one component for any Pulumi program; `__main__` is such a program, configured by a stack's
settings. None of this code runs in the controller.
"""
