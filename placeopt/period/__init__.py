"""The period of a placement (throughput): how it is evaluated, judged independently, bounded."""
