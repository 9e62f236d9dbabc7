"""``python -m detente``."""

import sys

if __name__ == "__main__":
    try:
        from detente.cli import main
    except KeyboardInterrupt:  # in the first tenth of a second: nothing runs yet that would say so
        sys.exit(130)
    main()
