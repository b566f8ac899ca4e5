"""One decision: its numbered steps, from commands to events."""
