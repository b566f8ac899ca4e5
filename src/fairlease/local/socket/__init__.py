"""The daemon's socket: protocol, access, and what each verb answers."""
