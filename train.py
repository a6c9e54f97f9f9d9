"""See `python train.py --help`."""

from transformer.cli.train import train_main

if __name__ == "__main__":
    raise SystemExit(train_main())
