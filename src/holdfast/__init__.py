"""Holdfast: an MQTT broker network in which every topic carries a contract."""
