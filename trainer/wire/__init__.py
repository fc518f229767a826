"""What goes between ranks: collectives, messages, meetings, and who is blamed for a failure."""
