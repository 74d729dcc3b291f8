"""Two seeds of the campaign of settings changes."""

from __future__ import annotations

import pytest

from bench.settingschanges import runs

pytestmark = pytest.mark.cluster


def test_settings_can_change_on_a_running_stack() -> None:
    findings = {seed: run.findings for seed, run, _ in runs([1, 3])}

    assert findings == {1: [], 3: []}
