"""The stand-in for `pulumi-resource-kubernetes`, for any Kubernetes kind.

* `api`           requests to the API server, and the kinds it serves
* `fields`        ownership of fields between create and apply
* `pruning`       the part of a live object that the inputs describe
* `readiness`     the reasons why an object is not ready
* `replacement`   the changes that force a replacement
* `provider`      the provider
"""
