"""Clients that people already have, unchanged, against the broker under test."""
