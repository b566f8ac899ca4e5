"""Who pays: the family of owners, and what each envelope answers (SEMANTICS §3)."""
