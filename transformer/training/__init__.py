"""The training step as a pure function: objectives, cross-entropy, optimizer, and its layout on devices."""
