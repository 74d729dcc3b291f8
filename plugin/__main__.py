"""The process that the engine starts for the package."""

from infra.plugin.server import main

main()
