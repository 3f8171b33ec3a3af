"""The command line: parse, wire, print. One module per group of commands."""

try:
    from placewright.cli.app import main
except KeyboardInterrupt:  # Ctrl-C while the modules were read
    raise SystemExit(130) from None

__all__ = ["main"]
