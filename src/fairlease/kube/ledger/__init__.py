"""The ledger as objects: journal, codec, snapshots, archive."""
