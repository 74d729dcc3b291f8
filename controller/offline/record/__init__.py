"""The command `record`: a recorded world of a live cluster, redacted if the user asks for it."""
