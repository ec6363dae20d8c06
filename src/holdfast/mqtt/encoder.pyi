# Nothing here is visible from Python: encoder.pxd is the interface.
