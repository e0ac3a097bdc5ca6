#!/bin/sh
# The sandbox that model-written commands run in: bubblewrap, and libfaketime for its fixed clock.
missing=""
command -v bwrap >/dev/null || missing="bubblewrap"
ls /usr/lib/*/faketime/libfaketime.so.1 /usr/lib/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing="$missing faketime"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq $missing >/dev/null && exit 0
fi
echo "error: the sandbox needs the package(s):$missing; install them, for instance with: sudo apt-get install $missing"
exit 1
