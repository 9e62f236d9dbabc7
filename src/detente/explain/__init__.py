"""Why one stack is faster than another: programs side by side, arms that change one cause, and what each is worth."""
