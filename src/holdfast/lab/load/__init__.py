"""The processes that publish and subscribe in a trial, and what they write down of it."""
