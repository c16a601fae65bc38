"""``python -m testbed``: the command line, or one line on what is not installed."""

import sys

_OURS = ("testbed", "reports", "launchers")


def main() -> int:
    """Run the command line on ``sys.argv`` and return its exit status."""
    try:
        # Not at the top: without torch even this module's import would end in a traceback.
        from testbed.cli import main as run
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        print(f"testbed: {error} (in {sys.executable}): run make setup", file=sys.stderr)
        return 3
    return run()


if __name__ == "__main__":
    sys.exit(main())
