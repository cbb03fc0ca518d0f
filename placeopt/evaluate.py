"""Moved: import from placeopt.evaluation."""
from placeopt.evaluation import *
