"""Which nodes should exist.

A solve is a function of a `Snapshot` and the pods that wait. Nothing here reads
a clock, a socket or a random number: two solves of one snapshot are equal, byte
for byte. Arrays live inside a solve and never leave it.

    scheduler   ask it here: `schedule`, and `least_cost` for a proof
    solving     one question being answered, round by round
    placing     pods to domains and to nodes that exist     domains/
    packing/    the rest onto new nodes, by price
    equipping/  the same where pods claim devices           devices/
    question    what waits, what is there, what can be bought, as arrays: encoding/
    verdicts, writing, reporter   causes, claims, the story
"""

import os

# The matrices are small: threads of the linear algebra library would cost more than they
# bring, and change the order of sums. It reads this when NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
