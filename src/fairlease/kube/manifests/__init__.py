"""CRDs, policies and roles, generated from the records."""
