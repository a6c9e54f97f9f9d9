"""Output that can point at the source: words never seen in training can be said by copying them."""
