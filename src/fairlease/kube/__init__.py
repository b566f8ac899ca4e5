"""The theatre of Kubernetes."""
