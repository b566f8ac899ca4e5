"""How answers look: tables, sentences and bars, for people and for programs."""
