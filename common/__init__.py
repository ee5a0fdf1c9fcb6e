"""What both implementations share, so that only the framework differs between them."""
