"""What runs inside a node: one process is one rank. Never imports docker or monitor."""
