"""What is given and what comes back: graphs, clusters, problems, placements, schedules, results."""
