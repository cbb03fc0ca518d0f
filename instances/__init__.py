"""Instances: readers, generators and clusters."""
