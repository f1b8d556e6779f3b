"""``python -m fullgrad``."""

from fullgrad._suite.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
