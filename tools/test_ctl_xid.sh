#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl xid: all rows, one in words, what overrides it, and what is wrong with that.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
none=$dir/none.tsv
: >"$none"

run 0 xid --table "$none"
says out "XID"
for code in 1 79 94 145 145.fatal 149.4 154.2 173 sxid sxid.fatal other; do
	grep -q "^$code " "$dir/out" || fail "$code is not listed"
done
[ "$(grep -c disputed "$dir/out")" = 9 ] || fail "not 9 disputed ones"
run 0 xid -q --table "$none"
grep -qx 79 "$dir/out" || fail "no bare name"

run 0 xid 94 --table "$none"
golden xid-94.txt
run 0 xid 149 --table "$none"
golden xid-149.txt
run 0 xid 145.fatal --table "$none"
says out "Xid 145.fatal: NVLink 5"
lacks out "Xid 145: "
run 0 xid 48 --table "$none"
says out "with       63: reset-gpu, 64: reset-gpu, 94: restart-process, 95: reset-gpu"
run 0 xid 999 --table "$none"
says out "Xid 999 is not in the table; for such it advises:"
says out "Xid other"
run 0 xid 20034 --table "$none"
says out "SXid 20034 is not in the table"

# ---- JSON

run 0 xid 94 --json --table "$none"
json 'r, = d["rows"]
assert r["xid"] == "94" and r["action"] == "restart-process" and r["then"] == "reset-gpu"
assert r["count"] == 2 and r["window_ns"] == 86400 * 10**9 and r["hold_ns"] == 3600 * 10**9
assert "Here: " in r["conflict"] and not r["overridden"]
says = {s["name"]: s["says"] for s in r["sources"]}
assert says["nvidia"].startswith("RESTART_APP") and "1000" in says["gpud"] and "tencent" in says'
run 0 xid --json --table "$none"
json 'assert len(d["rows"]) > 173 and all(r["sources"] for r in d["rows"])
assert [w["action"] for r in d["rows"] if r["xid"] == "45" for w in r["with"]] == ["ignore"]
assert [r["hold_ns"] for r in d["rows"] if r["xid"] == "79"] == [None]'

# ---- Overrides

printf '# ours\n94\t*\tdrain\tcritical\n' >"$dir/ours.tsv"
run 0 xid 94 --table "$dir/ours.tsv"
says out "advice     drain"
says out "severity   critical, an alarm"
says out "overridden $dir/ours.tsv, line 2"
says out "tencent"
run 0 xid --table "$dir/ours.tsv"
[ "$(grep -c overridden "$dir/out")" = 1 ] || fail "not one overridden row"
run 0 xid 94 --json --table "$dir/ours.tsv"
json 'r, = d["rows"]
assert r["action"] == "drain" and r["overridden"] and r["file"].endswith("ours.tsv")'

# ---- What is wrong is said

printf '94\t*\tdo-it\n' >"$dir/bad.tsv"
run 2 xid --table "$dir/bad.tsv"
says err "bad.tsv', line 1: action is 'do-it', not an action, such as reset-gpu"
silent out
run 2 xid --table "$dir/missing.tsv"
says err "open the table of Xids"
run 2 xid x
says err "'x' is no Xid"
run 2 xid 1.64
run 2 xid --table /dev/zero
says err "at most"
ending 39
