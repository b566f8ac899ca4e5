"""Processes: the shim of a pod, commands of the operator, and how the ranks of a gang find each other."""
