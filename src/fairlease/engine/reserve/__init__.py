"""Dates and liens for runs that cannot start yet: release times, availability, reservations (SEMANTICS §6)."""
