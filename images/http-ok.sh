#!/bin/sh
# Exits 0 when http://HOST:PORT/PATH answers 200, by the cheapest that an image has: Bash's own sockets, or busybox' wget.
# A Python or a promtool would cost ten to a hundred times the work.
#   http-ok.sh PORT PATH [HOST]   HOST: 127.0.0.1 by default
host=${3:-127.0.0.1}
command -v bash >/dev/null || exec wget -q -T 5 -O /dev/null "http://$host:$1$2"
exec bash -c '
    exec 3<>"/dev/tcp/$3/$1" || exit 1
    printf "GET %s HTTP/1.0\r\n\r\n" "$2" >&3
    read -r -t 5 status <&3 && [[ $status == HTTP/*" 200 "* ]] && cat <&3 >/dev/null
' http-ok.sh "$1" "$2" "$host"
