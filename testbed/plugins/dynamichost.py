"""The process that the engine starts for resources whose provider is a Python class.

It is `pulumi.dynamic` itself, which would outlive an engine that is killed, and
whose prints would wait in a buffer.
"""

import runpy
import sys

from testbed.plugins.lifetime import end_with_engine

if __name__ == "__main__":
    end_with_engine()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runpy.run_module("pulumi.dynamic", run_name="__main__")
