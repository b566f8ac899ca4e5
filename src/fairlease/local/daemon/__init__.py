"""The daemon: its loop, its configuration, and the GPUs of the machine."""
