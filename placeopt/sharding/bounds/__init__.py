"""Lower bounds on the cost of every feasible choice; `placeopt.sharding.prove` runs them, cheapest
first.
"""
