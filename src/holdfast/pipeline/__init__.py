"""From messages to datasets to channels to notifications, on Spark.

feed      the journal of some topics: what the recorder writes and Spark replays
dataset   the records of a feed as rows: Parquet files and a manifest
channel   a standing query over datasets, run every period for all its subscriptions at once
results   what executions found, kept until it is delivered
"""
