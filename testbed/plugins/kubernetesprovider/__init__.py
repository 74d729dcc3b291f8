"""The stand-in for `pulumi-resource-kubernetes`: any Kubernetes kind, by server-side apply.

* `api`           requests to the API server, and the kinds it serves
* `fields`        ownership of fields between create and apply
* `readiness`     the reasons why an object is not ready
* `replacement`   the changes that force a replacement
* `provider`      the provider
"""
