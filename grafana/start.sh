#!/bin/sh
# Grafana with an admin password of its own, new at each start: there is never a default one. It stays in the container:
#   docker compose -p syncbed exec grafana cat /var/lib/grafana/admin-password
set -e
secret="$GF_PATHS_DATA/admin-password"
(umask 077 && head -c 24 /dev/urandom | base64 >"$secret")
[ "$(wc -c <"$secret")" -ge 32 ] # without one Grafana would take its default
export GF_SECURITY_ADMIN_PASSWORD__FILE="$secret"
exec /run.sh "$@"
