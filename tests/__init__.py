"""All that holds the project to its word.

Programs and tests start here, and none by the command line: so they, too, must ask for one
thread of linear algebra before NumPy is imported, as `controller.__main__` does.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
