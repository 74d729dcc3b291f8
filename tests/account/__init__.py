"""Tests of the run on a real account, against stand-ins."""
