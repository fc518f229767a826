"""This machine: what it has, what crashed runs left on it, and which runtime it would use."""
