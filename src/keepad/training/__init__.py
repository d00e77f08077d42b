"""Training: the dense detector on cached features of a frozen backbone."""
