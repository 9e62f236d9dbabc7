"""``python -m detente``."""

from detente.cli import main

if __name__ == "__main__":
    main()
