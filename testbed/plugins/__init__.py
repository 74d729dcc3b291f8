"""Stand-ins for the plugins of Pulumi's engine, where the real ones cannot be downloaded.

The engine talks to its plugins by gRPC; each plugin here is one process that
answers the same calls through boto3 or the Kubernetes API. The engine, its
state and the SDKs are the real ones.

* `codec`               property bags: protobuf to plain values, secrets, unknowns
* `differences`         what changed between two bags, by path
* `provider`            what a stand-in must answer, in plain values
* `naming`              the names of resources that the program leaves unnamed
* `service`             the gRPC side, the same for every provider
* `lifetime`            a plugin ends with its engine
* `awsprovider`         `pulumi-resource-aws`
* `kubernetesprovider`  `pulumi-resource-kubernetes`
* `dynamichost`         `pulumi-resource-pulumi-python`
* `languagehost`        `pulumi-language-python`
* `languageexec`        the program itself, in the project's virtual environment or out of it
* `toolchain`           what `runtime.options` of Pulumi.yaml come to: `pulumi install`
"""
