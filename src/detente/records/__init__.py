"""The nouns of detente as frozen records; JSON in and out. Standard library only."""
