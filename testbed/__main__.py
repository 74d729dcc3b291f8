"""`python -m testbed`, on any Python: it re-executes in the one with the project's packages."""

import os
import sys

from testbed import environment


def main() -> int:
    """Run the command line in this Python, or re-execute it in one with all dependencies."""
    try:
        python = environment.other()
    except environment.UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    if python is not None:
        paths = [str(environment.CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        os.execv(python, [str(python), "-m", "testbed", *sys.argv[1:]])  # noqa: S606
    from testbed import commandline

    return commandline.main()


if __name__ == "__main__":
    sys.exit(main())
