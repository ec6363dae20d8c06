"""What the trials of an experiment recorded, analysed on Spark."""
