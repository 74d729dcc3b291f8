"""The Pulumi program: what must exist before a node can be asked for, and its end.

One component per noun: roles, access, the interruption queue, discovery tags, custom
resources, the controller, NodePools. Components know nothing of one another; `joiner`
composes them to one, for any program, and `__main__` is such a program, by a stack's
settings. Nothing here runs while the controller works.
"""
