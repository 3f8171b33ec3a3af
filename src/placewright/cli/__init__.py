"""The command line: parse, wire, print. One module per group of commands."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit; signals are handled before most of it is imported."""
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
