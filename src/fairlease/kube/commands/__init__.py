"""What `kubectl runs` asks and edits, with the rights of the caller."""
