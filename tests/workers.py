"""How a run with several workers distributes the tests."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling


class FilesAndClusters(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
    """Assigns each file to one worker, and all tests with a control plane to the same worker.

    Tests of a file share its fixtures. Two control planes at once are too much for two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid).partition("::")[0]
        return file
