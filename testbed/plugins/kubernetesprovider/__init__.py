"""The stand-in for `pulumi-resource-kubernetes`: any kind, by server-side apply.

* `api`           requests to the API server, and which kinds it serves
* `readiness`     what an object still waits for
* `replacement`   which changes need a new object
* `provider`      the provider
"""
