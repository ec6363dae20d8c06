"""One live page about a group and its pipeline: what is promised, what happens, and why something is red."""
