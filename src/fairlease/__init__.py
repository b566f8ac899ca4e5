"""Fairlease: gangs of GPUs, paid from budgets, placed all at once or not at all, and written down for good.

Nothing is imported here: `import fairlease` costs nothing, and every part is reached by its own name.
"""

__version__ = "0.1.0"
