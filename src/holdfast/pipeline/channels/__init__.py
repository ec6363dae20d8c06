"""Channels: standing queries over datasets, run every period for all their subscriptions at once.

near            SQL functions for places that are near each other
queries         the text of a query, and where it was written
checking        whether a query can run on the datasets, before it runs
subscriptions   the relation `subscriptions`, kept in Spark and changed in small steps
notifications   from rows to one payload for each subscription
execution       one channel: its session, its views, one execution of it
schedule        when which channel is due
service         all channels: due ones run in threads, failures are told and tried again
"""
