"""What tasks of sound and of pictures share, and the times of words."""
