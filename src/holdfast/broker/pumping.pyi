"""Sessions whose queues can move on do so, as far as a turn allows; compiled code alone calls it."""
