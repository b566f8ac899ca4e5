"""The backend of Kubernetes."""
