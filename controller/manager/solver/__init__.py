"""The solver's process: it computes on encoded snapshots, so that the event loop never waits."""
