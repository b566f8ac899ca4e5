"""Random worlds, all from one seed, so that the seed is the bug report."""
