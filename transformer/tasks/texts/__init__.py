"""Tasks whose records are texts: translation, labels, answers, trees; and what steers their outputs."""
