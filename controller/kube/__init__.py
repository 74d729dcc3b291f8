"""The adapter of the API server's port: the only package that speaks HTTP to Kubernetes.

It translates requests and responses, and makes no decisions. `access` finds the server and the
credentials. `client` implements the port with aiohttp. `watching` continues a watch after broken
connections. `throttle` limits the rate of requests. `decoding` parses responses. `errors`
translates every failed request to an `ApiError`.
"""
