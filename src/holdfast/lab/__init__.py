"""Experiments: a model becomes trials, trials run on real processes, Spark analyses what they recorded."""
