"""Where examples come from: text files, TFDS, built-in corpora."""
