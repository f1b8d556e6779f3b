"""``python -m fullgrad``."""

from fullgrad._cli import main

if __name__ == "__main__":
    raise SystemExit(main())
