"""C-level only: see message.pxd."""
