"""The solver's process, which computes on encoded snapshots and keeps the event loop free."""
