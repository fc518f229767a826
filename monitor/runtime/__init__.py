"""How nodes are reached. Nothing outside this folder knows whether a node is a container or a process here."""
