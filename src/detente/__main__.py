"""``python -m detente``."""

import os
import sys

if __name__ == "__main__":
    # `-m` looks in the current folder before everything: a json.py of the user's that lies there is no library. What a
    # user's file imports from there comes behind everything else (records/users_path.py), as by the command `detente`.
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != os.path.dirname(
        os.path.dirname(os.path.realpath(__file__))
    ):
        del sys.path[0]
    try:
        from detente.cli import main
    except KeyboardInterrupt:  # in the first tenth of a second: nothing runs yet that would say so
        sys.exit(130)
    main()
