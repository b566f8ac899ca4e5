"""The backend of one machine: a daemon, its socket, and real processes."""
