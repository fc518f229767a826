# Prometheus from Debian's package, where the public image cannot be had.
ARG BASE_IMAGE=syncbed-debian:bookworm
FROM ${BASE_IMAGE}
# The version is the release's own: Debian keeps no older ones.
# hadolint ignore=DL3008
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*
