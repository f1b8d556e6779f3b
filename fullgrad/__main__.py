"""``python -m fullgrad``."""

if __name__ == "__main__":
    try:
        from fullgrad.cli import main
    except KeyboardInterrupt:  # the commands import torch's compilers, which takes seconds
        raise SystemExit(130) from None
    raise SystemExit(main())
