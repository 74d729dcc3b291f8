"""Guards that refuse a change before anything happens, and proofs after a destroy."""
