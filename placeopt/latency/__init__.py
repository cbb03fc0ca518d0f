"""The latency of a placement with slots: how it is evaluated, judged independently, bounded."""
