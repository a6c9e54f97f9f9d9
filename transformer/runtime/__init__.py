"""What surrounds the work: errors, files, text, processes, the compilation cache. Knows no model."""
