"""The API server: connection, credentials, informer, election, and the types that are read and written."""
