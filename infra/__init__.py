"""The Pulumi program: creates what the controller needs to launch nodes, and deletes it.

There is one component per noun: roles, access, the interruption queue, discovery tags, custom
resources, the controller, NodePools. Components do not import one another. `joiner` composes them
into one component for any Pulumi program; `program` is such a program, configured by a stack's
settings. None of this code runs in the controller.

Terms:

    installation  what one stack, or one component `Joiner`, creates for a cluster; its AWS
                  resources have the tag `joiner.dev/installation`, whose value names it
    engine        Pulumi's engine, which runs the program and then the providers
    provider      the code that creates, changes and deletes a resource for the engine
    dynamic resource  a resource whose provider is Python code of this program
    guard         a check, or a dynamic resource, that refuses a harmful change before it begins
"""
