"""The columns of a feed, of its journal on disk as of the Spark source.

Laws:
- `offset` grows by one from record to record of a feed, and never names another record
- `publisher`, `sequence` and `created_ns` are of the message's stamp, and null without one
- times are CLOCK_REALTIME nanoseconds
"""

from __future__ import annotations

import pyarrow as pa

RECORD = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publisher", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("created_ns", pa.int64()),
        pa.field("arrived_ns", pa.int64(), nullable=False),
    ]
)

# The same for Spark, where the feed is a column too.
SPARK_SCHEMA = (
    "feed STRING, offset BIGINT, topic STRING, payload BINARY, publisher STRING, sequence BIGINT, "
    "created_ns BIGINT, arrived_ns BIGINT"
)
