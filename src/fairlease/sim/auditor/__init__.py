"""The auditor of random worlds: an independent witness fed with nothing but the ledger's entries."""
