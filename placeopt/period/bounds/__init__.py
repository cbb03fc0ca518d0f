"""Lower bounds on the period."""
