"""The theatre of one machine: a daemon, its socket, and real processes."""
