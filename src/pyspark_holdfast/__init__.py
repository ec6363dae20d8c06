"""Spark finds this module by its name, and with it the format "holdfast", without any registration."""

from holdfast.pipeline.format import Format as DefaultSource

__all__ = ["DefaultSource"]
