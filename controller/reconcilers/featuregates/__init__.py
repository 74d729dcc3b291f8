"""Reports on objects without effect because their feature gate is off."""
