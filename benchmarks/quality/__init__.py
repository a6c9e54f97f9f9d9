"""What trained models score, and whether they last: the figures of docs/results.md, speech/results.md, recipes."""
