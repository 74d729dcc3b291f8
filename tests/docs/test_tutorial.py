"""The tutorial's commands print the output in the tutorial."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from infra.config import CHECKOUT

PAGE = (CHECKOUT / "docs" / "tutorial" / "engine.md").read_text()
BLOCKS = re.findall(r"^```(sh|text)\n(.*?)^```$", PAGE, re.M | re.S)


def test_each_command_of_the_tutorial_prints_what_follows_it(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(CHECKOUT / "docs")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "COLUMNS": "200",
    }
    output, compared = "", 0

    for language, text in BLOCKS:
        if language == "sh" and "testbed.environment" not in text:
            done = subprocess.run(
                ["bash", "-euc", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            output = done.stdout
        elif language == "text":
            for line in text.splitlines():
                assert line in output
                compared += 1

    assert compared == 7
