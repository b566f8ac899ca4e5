"""What Fairlease costs, measured: `python -m bench` runs everything and prints one JSON object (see README.md)."""
