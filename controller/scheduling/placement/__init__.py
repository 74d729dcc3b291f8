"""Which domains and which of the nodes that exist pods go to; the rest is packed."""
