"""Stand-ins for Pulumi's plugins, for machines that cannot download the real ones.

Pulumi's engine calls its plugins by gRPC. Each plugin here is a process that answers the same
calls with boto3 or the Kubernetes API. The engine, its state and the SDKs are the real ones.

* `codec`               property bags: protobuf to plain values, secrets, unknowns
* `differences`         the differences between two bags, by path
* `provider`            the interface of a stand-in provider, in plain values
* `naming`              automatic names of resources
* `service`             the gRPC side, shared by all providers
* `lifetime`            ends a plugin when its engine ends
* `awsprovider`         `pulumi-resource-aws`
* `kubernetesprovider`  `pulumi-resource-kubernetes`
* `dynamichost`         `pulumi-resource-pulumi-python`
* `languagehost`        `pulumi-language-python`
* `languageexec`        runs the program, in the project's virtual environment or outside it
* `toolchain`           `runtime.options` of Pulumi.yaml, and `pulumi install`
* `home`                the folder in which the engine finds the plugins
* `engine`              runs the engine on a project
"""
