"""What happened: events, the state they fold to, the chain of their hashes, and the stores that keep them."""
