"""What commands share: options, help, errors and signals, input, output, and writers that systems extend."""
