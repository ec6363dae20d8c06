# Nothing here is visible from Python: fields.pxd is the interface.
