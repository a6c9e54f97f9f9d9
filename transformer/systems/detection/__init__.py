"""Detection: the objects of pictures, with their boxes."""
