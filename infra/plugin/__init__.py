"""The component as a Pulumi package, for programs in any language (`plugin/PulumiPlugin.yaml`).

* `schema`      what the package offers: the arguments and outputs of the component
* `arguments`   values of a program → the component's arguments
* `server`      the process that the engine starts: creates the component, and runs the providers
                of its resources
"""
