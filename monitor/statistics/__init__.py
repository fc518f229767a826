"""What repeated measurements say: estimates and their intervals."""
