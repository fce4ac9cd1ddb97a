#!/bin/sh
# Makes ./configure out of configure.ac; needed once after a checkout from git.
set -e
cd "$(dirname "$0")"
mkdir -p m4 build-aux
exec autoreconf --install --force --warnings=all,no-portability,no-obsolete
