"""Experiments: a model becomes trials, trials run on real processes, what they recorded is analysed on Spark."""
