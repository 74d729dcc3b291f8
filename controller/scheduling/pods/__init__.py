"""What waits: pods that are equal are one class; what they need, prefer and claim."""
