"""What the ledger says, written to objects: pods, leases, statuses, events."""
