"""Questions about runs, money and time, answered alike on every backend."""
