"""The stand-in for `pulumi-resource-aws`: the resource types of Joiner's Pulumi program, on boto3.

There is one module per AWS service. A resource type is a small class. It declares what the
provider needs to know (inputs that force a replacement, JSON documents, computed outputs) and
makes the four calls: create, read, update, delete.
"""
