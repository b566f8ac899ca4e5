"""Traces: formats, replay on the real engine, report and page."""
