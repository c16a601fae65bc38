#!/bin/sh
# What a cron job calls:  30 2 * * *  /path/to/the/checkout/launchers/nightly.sh [VARIABLE=value ...]
# The arguments are make's. Silent if nothing failed, so that cron mails failures only; then prints
# the summary. Exit status: 0; 2 if a target failed; 3 if it cannot run, or the last one still does.
cd "$(dirname "$0")/.." && mkdir -p reports/out || exit 3
out=reports/out/nightly
exec 9>reports/out/nightly.lock || exit 3
if ! flock -n 9; then
    echo "nightly: the run before this one has not ended: see $out" >&2
    exit 3
fi
rm -f "$out/latest"
# The lock is this script's alone: what make starts must not hold it for longer.
make nightly "$@" >reports/out/nightly.log 2>&1 9>&-
status=$?
if [ "$status" -ne 0 ]; then
    cat "$out/latest/summary.md" 2>/dev/null || tail -n 20 reports/out/nightly.log
fi
exit "$status"
