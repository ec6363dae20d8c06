"""What goes when more waits for a session than may; compiled code alone calls it."""
