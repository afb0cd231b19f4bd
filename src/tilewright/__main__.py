"""``python -m tilewright`` is the ``tilewright`` command."""

from tilewright.cli import main

if __name__ == "__main__":
    main()
