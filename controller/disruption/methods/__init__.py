"""The disruption methods: what they propose and validate, in the order in which they are tried."""
