"""The controller as a process with an in-memory cloud; the manager's tests start it."""

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
        """An in-memory cloud that needs no start and no background work."""

        async def start(self) -> None:
            """Return at once."""

        async def run(self) -> None:
            """Wait until cancelled."""
            await asyncio.Event().wait()

        async def shutdown(self) -> None:
            """Return at once: no work is in progress."""

    options = Options.parse(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    replica = Replica(
        options,
        access.from_environment(os.environ),
        lambda options, dns: RunningFakeCloud(idle=lambda: asyncio.sleep(1)),
        environ=os.environ,
    )
    asyncio.run(replica.run())
