"""Where examples come from: text files, tables, manifests, TFDS."""
