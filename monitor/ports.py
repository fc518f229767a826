"""TCP ports of this machine: whether one is free."""

import socket

from monitor.errors import UserError


def check_port(setting: str, port: int, holder: str = "another program", address: str = "127.0.0.1") -> None:
    """Raises UserError when something listens on this port already; `holder` says what, if known."""
    if not _free(port, address):
        near = next((p for p in range(port + 1, min(port + 200, 65536)) if _free(p, address)), None)
        raise UserError(f"{setting}={port}: taken by {holder}" + (f"; {setting}={near} is free" if near else ""))


def _free(port: int, address: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except PermissionError:
            return True  # a port below 1024: only the engine may take it
        except OSError:
            return False
        return True
