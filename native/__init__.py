"""The run in native PyTorch: everything explicit."""
