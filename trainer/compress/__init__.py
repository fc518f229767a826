"""What travels in place of gradients: one compressor a file."""
