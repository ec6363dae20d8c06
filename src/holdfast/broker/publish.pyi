"""C-level only: see publish.pxd."""
