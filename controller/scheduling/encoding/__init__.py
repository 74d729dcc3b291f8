"""The question as arrays: pods, nodes, types and labels, and what each pod wishes."""
