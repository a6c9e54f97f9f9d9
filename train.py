"""See `python train.py --help`."""

from transformer.runtime.machine import interrupt_silently, use_large_pages

if __name__ == "__main__":
    use_large_pages()
    interrupt_silently()

    from transformer.cli.guard import leave
    from transformer.commands.train import train_main

    leave(train_main())
