"""The campaign of faults: a whole controller beside everything that goes wrong around it.

processes    an event loop on which processes are killed and paused, on virtual time
region       an AWS in memory that keeps EC2's promises, and no more than those
cluster      everybody else in the cluster: kubelets, kube-scheduler, workloads
wires        the ways of one process to the API server and to AWS, where faults strike
replicas     replicas of the real controller, one of which leads
injection    what goes wrong, when, by kind and seed
auditor      what must hold whatever went wrong; shares no code with the controller
campaign     one run from start to end; many runs side by side
"""
