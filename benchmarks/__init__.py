"""Holdfast beside mosquitto, nats-server and amqtt: the same load, the same machine, the same run.

Only ratios between contestants of one run mean anything. Contestants take turns (A B C, A B C, …) so that a
busy machine disturbs all alike; a figure is the median of the turns and is printed with its spread.
Every message that is counted has arrived; a message that does not arrive fails the benchmark.
"""
