"""The makespan of a placement: how it is evaluated, judged independently, bounded."""
