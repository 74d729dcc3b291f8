"""What EC2 and EKS do to make an instance a Node and to keep it one.

`kubelets` follows the cloud's instances. An instance joins only if its user data fits the cluster,
its subnet reaches EKS, and its role has access. `userdata` parses user data. `instances` derives
the Node from an instance. `volumes` emulates the CSI driver that provisions and attaches the
volumes of pods.
"""
