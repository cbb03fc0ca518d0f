"""`python -m placeopt` is the command line."""

from placeopt.cli import command

if __name__ == "__main__":
    command()
