"""The values of channel subscriptions, for the pipeline: the same as the brokers check at SUBSCRIBE.

Law: what a broker that knows the catalog grants, `parse_subscription` takes. A broker that does not know it
yet grants more, so that a subscription may not fit its channel: it has no results.
"""

from __future__ import annotations

from holdfast.mqtt.channels import (
    PARAMETER_TYPES,
    Value,
    channel_topic,
    format_subscription,
    parse_subscription,
)

__all__ = ["PARAMETER_TYPES", "Value", "channel_topic", "format_subscription", "parse_subscription"]
