"""What the world is made of: frozen records, how they are read, checked and written."""
