"""Who may connect, and what they may do: files, users, rules, limits, and threads that check passwords."""
