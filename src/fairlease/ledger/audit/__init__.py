"""The independent fold that proves what the ledger claims."""
