"""C-level only: see holding.pxd."""
