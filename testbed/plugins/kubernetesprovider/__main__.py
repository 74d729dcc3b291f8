"""Entry point of the process that the engine starts as `pulumi-resource-kubernetes`."""

from testbed.plugins.kubernetesprovider.provider import KubernetesProvider
from testbed.plugins.service import run

if __name__ == "__main__":
    run(KubernetesProvider())
