"""The Pulumi program, which `infra/program.py` contains."""

from infra.program import main

main()
