"""Notifications: which are raised, how they are kept, and how they are delivered."""
