"""What goes between ranks: collectives and messages, counted; meetings; who is blamed when one fails."""
