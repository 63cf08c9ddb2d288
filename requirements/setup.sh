#!/bin/sh
# Finds a Python that can run Sluice, and runs bootstrap.py with it, which installs the packages of
# the lock files into .venv.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tried=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        continue
    case $version in
    3.11 | 3.12 | 3.13) exec "$candidate" "$here/bootstrap.py" "$@" ;;
    esac
    tried="$tried $candidate is $version;"
done
echo "Sluice needs Python 3.11, 3.12 or 3.13;${tried:- no python3 was found}" >&2
echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
exit 2
