#!/bin/sh
# Build a base image from Debian packages, for machines where no image registry answers.
#   images/base/build.sh syncbed-debian:bookworm
# Needs root and debootstrap. Environment: DEBIAN_MIRROR names a mirror; else the host's own, else debootstrap's default.
# DEBIAN_KEYRING names the file of keys that the mirror's release is verified with; default: Debian's.
set -eu
tag=$1
suite=bookworm
say() { echo "images/base/build.sh: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || say "debootstrap needs root: run 'sudo $0 $tag' once, or name a base image with BASE_IMAGE="
command -v debootstrap >/dev/null || say "debootstrap is missing: apt-get install debootstrap (or name a base image with BASE_IMAGE=)"
# Packages run as root while they are installed. Without the archive's keys debootstrap would only warn and go on.
keys=${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
[ -s "$keys" ] || say "$keys is missing, so packages cannot be verified: install debian-archive-keyring, or name a base image with BASE_IMAGE="

# A host that is this Debian release already knows which mirror and proxy to use.
mirror=${DEBIAN_MIRROR:-}
if command -v apt-get >/dev/null; then
    # shellcheck disable=SC2016 # apt-get fills this in
    site='$(REPO_URI)'
    [ -n "$mirror" ] || mirror=$(apt-get indextargets --format "$site" "Created-By: Packages" "Codename: $suite" \
        "Component: main" "Label: Debian" 2>/dev/null | grep '^http' | head -n 1 || true)
    eval "$(apt-config shell apt_proxy Acquire::http::Proxy)"
    [ -z "${apt_proxy:-}" ] || export http_proxy="${http_proxy:-$apt_proxy}"
fi

# /var/tmp: /tmp is often a small tmpfs, or mounted without device files.
root=$(mktemp -d "${TMPDIR:-/var/tmp}/syncbed-base.XXXXXX")
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$root"  # becomes / of the image, whatever the umask here
# shellcheck disable=SC2086 # an empty mirror must be no argument at all
(umask 022; debootstrap --force-check-gpg --keyring="$keys" --variant=minbase \
    --include=ca-certificates,iproute2,python3,python3-venv "$suite" "$root" $mirror)
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" --numeric-owner -c . | docker import --change 'CMD ["bash"]' - "$tag"
