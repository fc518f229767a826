#!/bin/bash
# Exits 0 when http://127.0.0.1:PORT/PATH answers 200. Bash's own sockets: a Python would cost a hundred times the work.
#   http-ok.sh PORT PATH
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
read -r -t 5 status <&3 && [[ $status == HTTP/*" 200 "* ]] && cat <&3 >/dev/null
