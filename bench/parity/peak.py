"""Run a command and write its peak memory to a file, in KiB.

    python peak.py FILE COMMAND …

The kernel counts the memory of the forking process towards the peak of the forked one. The command
therefore starts from this script, which uses almost no memory, and not from a process that holds
worlds.
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
