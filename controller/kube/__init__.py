"""The adapter of the API server's port: the only room that speaks HTTP to Kubernetes.

It translates and never decides. `access` finds the server and the right to talk to
it, `client` is the port over aiohttp, `watching` follows a kind through broken
connections, `throttle` holds back, `errors` turns every refusal into one of ours.
"""
