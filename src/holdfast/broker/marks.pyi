"""Nothing here for Python."""
