"""What the backends share: clock, settings, metrics, HTTP endpoints, queries, notifications, processes."""
