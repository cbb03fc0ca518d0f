"""Lower bounds on the cost of every feasible choice;
`placeopt.sharding.objective` runs them, cheapest first.
"""
