"""The command `top`: nodes, NodePools, pending pods and decisions of a cluster in the terminal."""
