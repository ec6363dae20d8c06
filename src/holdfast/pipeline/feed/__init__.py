"""The journal of some topics: the recorder writes it, anyone replays any range of it."""
