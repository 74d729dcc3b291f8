"""Reports on objects that have no effect because their feature gate is off."""
