"""TOML, which Python reads by itself from 3.11 on; before, the same reader is the package tomli."""

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib


TOMLDecodeError, loads = tomllib.TOMLDecodeError, tomllib.loads
