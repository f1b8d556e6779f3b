"""``python -m fullgrad``."""

if __name__ == "__main__":
    from fullgrad.cli import main

    raise SystemExit(main())
