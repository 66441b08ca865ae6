"""What the printers of all devices share."""
