"""The journal, on a disk in memory that crashes at any byte and on real ones."""
