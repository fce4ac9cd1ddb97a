#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The whole node in virtual time: seeds that nobody chose, seeds twice, and every planted bug.
# CKPT_SIM_SEEDS says how many; CKPT_SEED replays one.

. "$top_srcdir/tests/lib/functions.sh"

sim=$top_builddir/tests/sim/sim
bad=0

expect() { # NAME COMMAND...
	name=$1
	shift
	if "$@"; then
		echo "ok $name"
	else
		echo "not ok $name"
		bad=1
	fi
}

expect seeds "$sim" --seeds "${CKPT_SIM_SEEDS:-500}" --summary
expect replay env -u CKPT_SEED "$sim" --seeds 25 --check-replay
if "$sim" --has-bugs; then
	expect bugs "$sim" --bugs --first 1
else
	echo "skip bugs built without fault injection"
fi
exit $bad
