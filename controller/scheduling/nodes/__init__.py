"""What exists or is coming: the room there, who is there, and the volumes attached."""
