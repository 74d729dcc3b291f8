"""Which nodes should exist.

A solve is a function of a `Snapshot` and the pods that wait. Nothing here reads
a clock, a socket or a random number: two solves of one snapshot are equal, byte
for byte. Arrays live inside a solve and never leave it.
"""

import os

# The matrices are small: threads of the linear algebra library would cost more than they
# bring, and change the order of sums. It reads this when NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
