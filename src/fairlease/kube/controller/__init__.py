"""The controller: leader loop, cache, and what observations become."""
