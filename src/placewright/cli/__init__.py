"""The command line: one module for each group of commands."""

from typing import NoReturn


def main() -> NoReturn:
    """Handle signals, then import and run the command line, and exit."""
    from placewright.cli import signals

    signals.handle()
    try:
        from placewright.cli.app import main as run
    except KeyboardInterrupt:
        signals.state.is_ending = True
        signals.forget()
        signals.tell()
        raise SystemExit(signals.received() or signals.EXIT_INTERRUPTED) from None
    run()


__all__ = ["main"]
