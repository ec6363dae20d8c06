# Nothing here is visible from Python: properties.pxd is the interface.
