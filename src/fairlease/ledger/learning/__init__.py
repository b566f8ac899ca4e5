"""What forecasts learn from: how long work ran, and how long runs waited."""
