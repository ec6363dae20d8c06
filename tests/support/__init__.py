"""What tests of several kinds share: brokers as processes."""
