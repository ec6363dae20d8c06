"""One test per normative statement that binds a server, named by the statement's number."""
