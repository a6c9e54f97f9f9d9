"""What came before the Transformer: recurrent and convolutional sequence-to-sequence models."""
