"""Datasets: the records of feeds as rows in Parquet files, and the manifest that says which files count."""
