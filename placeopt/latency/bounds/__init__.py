"""Lower bounds on the latency."""
