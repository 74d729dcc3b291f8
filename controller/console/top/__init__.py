"""The command `top`: nodes, NodePools, pending pods and decisions of a cluster in the terminal."""

import os

# Milliseconds after which Escape counts as a key rather than as the beginning of a sequence.
# Textual reads them when it is imported; its 100 ms are as long as a whole answer may take.
os.environ.setdefault("ESCDELAY", "25")
