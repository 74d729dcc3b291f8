"""The controller as a process, with a cloud in memory; started by the tests of the manager."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    import asyncio

    from controller.cloudprovider.fake import FakeCloud
    from controller.kube import access
    from controller.manager.replica import Replica
    from controller.options import Options
    from controller.telemetry import logs

    class RunningFakeCloud(FakeCloud):
        """A cloud in memory that needs no start and no care."""

        async def start(self) -> None:
            """Have everything ready."""

        async def run(self) -> None:
            """Wait for the end."""
            await asyncio.Event().wait()

        async def settle(self) -> None:
            """Have nothing under way."""

    options = Options.parse(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    replica = Replica(
        options,
        access.from_environment(os.environ),
        lambda options, dns: RunningFakeCloud(idle=lambda: asyncio.sleep(1)),
        environ=os.environ,
    )
    asyncio.run(replica.run())
