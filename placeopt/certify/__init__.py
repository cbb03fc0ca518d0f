"""Certificates: what is proved about a solution from any source."""
