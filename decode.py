"""See `python decode.py --help`."""

from transformer.runtime.machine import interrupt_silently

if __name__ == "__main__":
    interrupt_silently()

    from transformer.cli.guard import leave
    from transformer.commands.decode import decode_main

    leave(decode_main())
