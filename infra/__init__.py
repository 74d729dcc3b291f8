"""The Pulumi program: what must exist before a node can be asked for, and its end.

One component per noun: roles, access, the interruption queue, discovery tags, custom
resources, the controller, NodePools. Components know nothing of one another;
`__main__` composes them. Nothing here runs while the controller works.
"""
