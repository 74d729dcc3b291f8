"""The nouns on the wire, each with the fields the controller reads.

Types mirror the Kubernetes JSON they come from: a field we do not read is not
declared and is dropped while decoding, so that a pod costs bytes, not
kilobytes. Nothing here decides anything, and nothing here does I/O.
"""
