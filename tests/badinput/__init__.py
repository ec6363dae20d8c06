"""What nobody should send, sent to a running broker: one client is told, all others notice nothing."""
