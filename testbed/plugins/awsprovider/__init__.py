"""The stand-in for `pulumi-resource-aws`: the resource types that the bundle uses, on boto3.

One module per AWS service. A resource type is a small class that says what the
provider must know of it (which inputs are fixed for life, which are JSON
documents, which outputs only exist afterwards) and makes its four calls.
"""
