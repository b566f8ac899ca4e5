"""Where entries are kept: hash chain, memory, SQLite, snapshots, export."""
