"""Tests of the trace simulator."""
