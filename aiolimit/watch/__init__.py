"""What watches: every metric there is, and whose values are told."""
