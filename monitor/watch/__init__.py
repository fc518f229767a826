"""The live page of the run that is on: its events and its nodes' figures as they come, served on 127.0.0.1.

`make run` opens a door (door.py): nothing is served until a browser comes, then by a process of its own
(__main__.py). `make watch` (command.py) serves the same page from a process of the user's. Both only read what the run
writes anyhow (feed.py), and make a story of it (story.py) that any number of readers are told (live.py, server.py).
"""
