"""Whose work is preempted for a funded claim: victims, selection, lottery, resolution (SEMANTICS §7)."""
