"""JSON of every object, and placement files."""
