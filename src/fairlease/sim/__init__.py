"""The backend of virtual time: scenarios, random worlds and their auditor, and traces."""
