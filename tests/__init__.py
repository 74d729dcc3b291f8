"""The test suites of the project.

Programs and tests start in this package and not from Joiner's command line. They must therefore
also request one thread of linear algebra before NumPy is imported, as `controller.__main__` does.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
