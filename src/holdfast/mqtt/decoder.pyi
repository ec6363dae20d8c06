# Nothing here is visible from Python: decoder.pxd is the interface.
