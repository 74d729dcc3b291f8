"""How a run with several workers shares the tests out."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling


class FilesAndClusters(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
    """One worker runs a file from end to end, and one all that needs a control plane.

    Tests of a file share what it sets up; two control planes at once are too much for two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid).partition("::")[0]
        return file
