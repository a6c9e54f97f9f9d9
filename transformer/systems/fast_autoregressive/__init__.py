"""AT and FAT: a recurrent decoder whose input words are gated by attention to the source."""
