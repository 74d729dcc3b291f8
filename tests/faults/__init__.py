"""A few runs of the fault campaign, and tests of its auditor."""
