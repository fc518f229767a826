"""Synchronisation strategies, one file each, and what they share."""
