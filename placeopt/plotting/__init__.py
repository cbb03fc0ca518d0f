"""Pictures and traces of schedules and results."""
