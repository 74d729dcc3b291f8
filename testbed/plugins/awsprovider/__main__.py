"""Entry point of the process that the engine starts as `pulumi-resource-aws`."""

from testbed.plugins.awsprovider.provider import AwsProvider
from testbed.plugins.service import run

if __name__ == "__main__":
    run(AwsProvider())
