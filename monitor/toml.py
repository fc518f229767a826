"""TOML, which Python reads by itself from 3.11 on; before, the same reader is the package tomli."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports] (installed where it is needed)

TOMLDecodeError, loads = tomllib.TOMLDecodeError, tomllib.loads
