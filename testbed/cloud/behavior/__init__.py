"""AWS behavior that moto does not emulate: limits, refusals, eventual consistency, paging."""
