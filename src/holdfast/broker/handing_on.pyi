"""What waits for a member of a shared group whose session ends; compiled code alone calls it."""
