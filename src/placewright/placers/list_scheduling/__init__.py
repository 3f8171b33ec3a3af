"""What list schedulers share."""
