"""What is true now: events, the state they fold to, and its indexes."""
