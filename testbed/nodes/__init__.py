"""What EC2 and EKS do to make an instance a Node, and to keep it one.

`kubelets` follows the cloud's instances and lets one join only if its user data and its access
entry are right; `userdata` reads what an instance was told, `instances` says what kind of node
it makes, `volumes` stands in for the driver that binds and attaches what its pods keep.
"""
