"""Pods as real processes."""
