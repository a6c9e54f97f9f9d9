"""What is searched beside the model: other models, and language models of the output."""
