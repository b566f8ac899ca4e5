"""What to do next: the rules, pure. It is handed the state and the time, and gives back events."""
