"""What a run shows to Prometheus, to an OpenTelemetry collector and in its logs; nothing decides by it.

A collector that is away, or a port that is taken, ends no run.
"""
