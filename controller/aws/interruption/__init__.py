"""Messages and status checks that announce the end or a fault of instances.

`messages` reads the interruption queue, and `instancestatus` EC2's instance status. Both return
them as notices (`controller.cloudprovider.provider.Notice`).
"""
