"""When a waiting run will start: a rehearsal of the engine, intervals around it, and their calibration (SEMANTICS §6)."""
