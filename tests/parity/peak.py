"""Runs a command and writes down the most memory that it held, in KiB.

    python peak.py FILE COMMAND …

A process counts as its own the memory of the one that it was forked from; so the command is
started from here, where there is next to none, and not from a process that holds worlds.
"""

import resource
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    status = subprocess.call(sys.argv[2:])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    Path(sys.argv[1]).write_text(str(peak))
    sys.exit(status)
