#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl and the real ckptd: what happened, as it is told to people.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# python CODE [ARGUMENTS]: with the binding, and $sock.
python () {
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" /usr/bin/python3 -c "$@"
}
# event CODE: the newest answer has an event e of which CODE is true.
event () {
	json "assert any($1 for e in d[\"events\"]), d[\"events\"]"
}
# until COMMAND...: it comes true, in a minute.
until_true () {
	for i in $(seq 600); do
		! "$@" 2>/dev/null || return 0
		sleep 0.1
	done
	fail "never: $*"
}

# ---- What is kept

run 2 events --socket "$sock"
says err "cannot reach ckptd"
start_daemon
run 2 events --since yesterday --socket "$sock"
says err "give an event's number, how long ago"
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="one").close()'
run 0 events --json --socket "$sock"
json 'assert [e["seq"] for e in d["events"]] == list(range(1, d["next"])) and d["dropped"] == 0'
event 'e["kind"] == "started" and e["seq"] == 1'
event 'e["kind"] == "job-began" and e["subject"] == {"kind": "job", "job": "lm", "words": "job '"'lm'"'"} and e["world"] == 1 and e["run_id"] == "one"'
event 'e["kind"] == "job-ended"'
run 0 events --socket "$sock"
says out "job 'lm': epoch 1 begins with 1 rank (new run)"
lines=$(wc -l <"$dir/out")
run 0 events --since 2 --socket "$sock"
[ "$(wc -l <"$dir/out")" = $((lines - 1)) ] || fail "--since 2: $(cat "$dir/out")"
run 0 events --since 1h --socket "$sock"
[ "$(wc -l <"$dir/out")" = "$lines" ] || fail "--since 1h: $(cat "$dir/out")"
run 0 events --since '2038-01-01 10:00' --socket "$sock"
silent out
run 0 events --since "$(date -d '5 minutes' +%H:%M)" --socket "$sock" # of yesterday
[ "$(wc -l <"$dir/out")" = "$lines" ] || fail "--since HH:MM: $(cat "$dir/out")"
sleep 1.1
run 0 events --since "$(date +%H:%M:%S)" --socket "$sock"
silent out
run 2 events --since 25:00 --socket "$sock"
says err "or a time such as '10:00'"
# Ranks are told in order, however they came.
python '
import ckpt, subprocess, sys
ranks = [ckpt.open("two", r, 3, run_id="one") for r in (2, 0, 1)]
for name, *ask in ("status", "status", "two"), ("rank", "why", "two:1"), ("job", "why", "two"):
    with open(f"{sys.argv[2]}/{name}.json", "w") as out:
        subprocess.run([sys.argv[1], *ask, "--json"], stdout=out, check=True)
for c in ranks:
    c.close()' "$build/ckptctl" "$dir"
cp "$dir/status.json" "$dir/out"
json 'assert [r["rank"] for r in d["jobs"][0]["ranks"]] == [0, 1, 2], d["jobs"]'
# Whose stacks are to be taken; and what is not known is left out.
pid=$(/usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["jobs"][0]["ranks"][1]["pid"])' "$dir/status.json")
cp "$dir/rank.json" "$dir/out"
json "assert 'its process is $pid' in d['known'], d['known']"
cp "$dir/job.json" "$dir/out"
json 'assert d["known"] and not any("usually" in k for k in d["known"]), d["known"]'

# A rank that is killed: it is told who and how, and when its job begins again, that it is over.
python '
import ckpt, os, signal
c = ckpt.open("lm", 0, 1, run_id="killed")
os.kill(os.getpid(), signal.SIGKILL)'
dead () {
	ctl events --json --socket "$sock" >"$dir/out" && grep -q "$1" "$dir/out"
}
until_true dead process-ended
run 0 events --json --socket "$sock"
event 'e["kind"] == "verdict" and e["subject"]["kind"] == "rank" and e["subject"]["rank"] == 0 and e["subject"]["job"] == "lm" and e["class"] == "dead" and e["cause"] == "process-ended" and e["level"] == "alarm" and e["state"] == "raised" and e["evidence"] and "SIGKILL" in e["why"]'
run 0 events --socket "$sock"
says out "SIGKILL"
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="again").close()'
run 0 events --json --socket "$sock"
event 'e["kind"] == "verdict" and e["state"] == "cleared" and e["subject"]["rank"] == 0'
# Its story is told of whoever holds it, and of nobody else.
for whom in lm node ''; do
	run 0 why $whom --socket "$sock"
	says out "nothing stands against "
	says out "SIGKILL"
	run 0 why $whom --json --socket "$sock"
	json 'assert d["verdicts_more"] == 0 and d["events_more"] == 0'
	event 'e["kind"] == "decision" and e["subject"]["words"] == "rank 0 of job '"'lm'"'"'
	json 'assert len(d["events"]) <= 20 and [e["seq"] for e in d["events"]] == sorted(e["seq"] for e in d["events"])'
done
python '
import ckpt
ckpt.open("m", 0, 1, run_id="one").close()'
run 0 why m --socket "$sock"
says out "job 'm': epoch 1 begins"
lacks out "SIGKILL"

# Over a restart numbers go on, also when the last line was torn.
until_true grep -q job-ended "$data/events"
stop_daemon
printf '{"seq":4,"time_ns":1,"ki' >>"$data/events"
start_daemon
run 0 events --json --socket "$sock"
json 'assert [e["seq"] for e in d["events"]] == list(range(1, d["next"])), d
assert [e["kind"] for e in d["events"]].count("started") == 2'
run 0 verify --data "$data"
lacks out events

# ---- What happens

ctl events --follow --json --socket "$sock" >"$dir/followed" 2>"$dir/follow.log" &
trainer=$!
sleep 0.2
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="two").close()'
until_true grep -q '"kind":"job-ended","severity":6,.*"run_id":"two"' "$dir/followed"
kill $trainer
wait $trainer
trainer=
[ -s "$dir/follow.log" ] && fail "events --follow: $(cat "$dir/follow.log")"
: >"$dir/followed" # before the shell of the job does so
ctl events --follow --socket "$sock" >>"$dir/followed" 2>"$dir/follow.log" &
trainer=$!
until_true grep -q "epoch 4 begins" "$dir/followed"
stop_daemon
wait $trainer
[ $? = 2 ] || fail "events --follow goes on without ckptd"
trainer=
grep -q "ended the connection" "$dir/follow.log" || fail "events --follow: $(cat "$dir/follow.log")"

# ---- What follows: the policy, marks, a check, a drain

cat >"$dir/check" <<'SH'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/checked"
echo '{"schema": 2, "passed": false, "results": [{"name": "memory-copy", "state": "failed", "words": "half as fast as others", "value": 10.5, "low": 18, "unit": "GB/s"}, {"name": "gpu", "state": "skipped", "words": "none here"}]}'
exit 1
SH
chmod +x "$dir/check"
cat >"$dir/policy.tsv" <<'TSV'
*	*	note	*	*	*	*	record	-	-
dead	*	alarm	rank	*	*	*	checkpoint+mark-suspect+validate+restore	-	1h
*	check-failed	alarm	*	*	*	*	record	-	-
TSV
cat >"$dir/ckptd.conf" <<CONF
[checkpoint]
persist_every = 1000
[detect]
policy = $dir/policy.tsv
check = $dir/check
kernel = no
net = no
disk = no
memory = no
pressure = no
record = $dir/record
CONF
rm -rf "$data"
start_with_policy () {
	start_daemon --config "$dir/ckptd.conf"
}
start_with_policy
run 0 policy --socket "$sock"
says out "checkpoint+mark-suspect+validate+restore"
says out "from $dir/policy.tsv"
run 0 policy dead process-ended --dry-run --socket "$sock"
says out "would do: record"
run 2 policy dead hurrah --socket "$sock"
says err "'dead hurrah' is no verdict"
run 2 why nobody --socket "$sock"
says err "nothing here is called 'nobody'"
run 0 why --socket "$sock"
says out "nothing stands against anybody here"

python '
import ckpt, ctypes, os, signal
c = ckpt.open("lm", 0, 1, run_id="one")
t = (ctypes.c_float * 64)()
c.declare("w", (ctypes.addressof(t), "float32", (64,)))
c.prepare()
for step in (1, 2):
    t[0] = step
    assert c.save(step, wait_credit=True, timeout=60).wait(ckpt.COMMITTED, timeout=60)
os.kill(os.getpid(), signal.SIGKILL)'
until_true dead "so nothing follows"
run 0 events --json --socket "$sock"
event 'e["kind"] == "decision" and e["now"] == "checkpoint+mark-suspect+validate" and e["advised"] == "restore" and e["withheld"] == "" and e["row"] == 2'
event 'e["kind"] == "marked"'
# One user's job asked for the check, and may have made it fail: nothing is said of the node.
json 'assert not any(e["kind"] == "check-ended" for e in d["events"])'
event 'e["kind"] == "action-ended" and e["subject"].get("rank") == 0 and "for the sake of rank 0 of job '"'lm'"' failed: memory-copy: half as fast" in e["words"]'
until_true dead "step 2 is on disk"
run 0 events --json --socket "$sock"
event 'e["kind"] == "action-started" and "step 2" in e["words"]'
grep -q -- "node-check --json --time 60 --data $data" "$dir/checked" || fail "the check: $(cat "$dir/checked")"
run 1 why lm:0 --socket "$sock"
says out "rank 0 of job 'lm': dead (process-ended), alarm for"
says out "SIGKILL"
says out "  signal: 9, for "
says out "  begun by ckptd: checkpoint+mark-suspect+validate"
says out "job 'lm': step 2 is on disk" # how that ended
says out "  for you to do: restore"
says out "  because: row 2 of the policy says"
says out "suspect: dead (process-ended)"
run 1 why 'lm:0' --json --socket "$sock"
json 'assert len(d["verdicts"]) == 1 and d["verdicts"][0]["class"] == "dead" and d["suspect"] and d["known"] and d["drained"] is None'
run 2 why lm:7 --socket "$sock"
says err "job 'lm' has 1 rank: there is no rank 7"
run 1 why --socket "$sock"
run 1 status --socket "$sock"
says out "suspect rank 0 of job 'lm': dead (process-ended)"
says out "PROBLEM: rank 0 of job 'lm' is dead (process-ended) for "
says out "'ckptctl why lm:0' says what speaks for it"
run 1 status lm --json --socket "$sock"
json 'assert [a["ask"] for a in d["alarms"]] == ["lm:0"] and len(d["problems"]) == 1 and d["unwatched"] is None and d["not_kept"] is None, d'

# What is held down says so.
python '
import ckpt, os, signal
c = ckpt.open("lm", 0, 1, run_id="two")
os.kill(os.getpid(), signal.SIGKILL)'
until_true dead "held down"
grep -q "rank 0 opens here, where rank 0 of job 'lm' is suspect" "$dir/log" || fail "a suspect node does not say so to an open"
run 0 events --json --socket "$sock"
event 'e["kind"] == "decision" and e["withheld"] == "checkpoint+validate" and "held down for" in e["why"]'

# What does not fit in a message is refused here.
run 2 drain "$(head -c 70000 /dev/zero | tr '\0' x)" --socket "$sock"
says err "use shorter words"

# Drained: what opens anew is refused with a sentence, over a restart too.
run 0 drain "a fan is loud" --socket "$sock"
says out "takes no new runs"
run 0 drain --socket "$sock"
says out "already takes no new runs"
refused () {
	python '
import ckpt
try:
    ckpt.open("other", 0, 1, run_id="x")
except ckpt.Error as e:
    print(e)' 2>&1
}
refused | grep -q "is drained (a fan is loud, by uid" || fail "drained: $(refused)"
run 1 status --json --socket "$sock"
json 'assert "a fan is loud" in d["drained"]["reason"] and len(d["suspects"]) == 1'
stop_daemon
start_with_policy
run 0 status --socket "$sock"
says out "drained"
says out "suspect rank 0 of job 'lm'"
refused | grep -q "is drained" || fail "a restart forgets the drain: $(refused)"

# What stood is not known any more, and that is said, once.
run 0 events --socket "$sock"
says out "rank 0 of job 'lm' was dead (process-ended) when ckptd ended, and is watched anew"
run 0 events --json --socket "$sock"
event 'e["kind"] == "forgotten" and e["subject"].get("rank") == 0 and e["class"] == "dead" and "SIGKILL" in e["why"]'
run 0 why lm:0 --socket "$sock"
says out "rank 0 of job 'lm' was dead"
stop_daemon
start_with_policy
run 0 events --json --socket "$sock"
json 'assert sorted(e["subject"]["kind"] for e in d["events"] if e["kind"] == "forgotten") == ["rank"]' # told once

run 0 undrain --socket "$sock"
run 0 clear lm --socket "$sock"
says out "1 mark taken back"
run 0 status --json --socket "$sock"
json 'assert d["drained"] is None and d["suspects"] == []'
[ -z "$(refused)" ] || fail "undrained: $(refused)"

# A node's word is that of its devices and of the ranks on it, and not that of a job.
stop_daemon
cat >"$data/marks" <<'JSON'
{"suspects": [{"words": "job 'lm'", "reason": "it diverged", "since_ns": 1},
 {"words": "rank 4 of job 'lm'", "reason": "slow", "since_ns": 1},
 {"words": "disk nvme0n1", "reason": "slow", "since_ns": 1}], "drained": null}
JSON
start_with_policy
run 0 clear node --socket "$sock"
says out "2 marks taken back"
run 0 status --json --socket "$sock"
json 'assert [s["words"] for s in d["suspects"]] == ["job '"'lm'"'"], d["suspects"]'
run 0 clear lm --socket "$sock"
says out "1 mark taken back"
run 0 events --socket "$sock"
says out "is well again, says uid"

# A table with a mistake: the one before stays.
echo "dead * alarm rank * * * explode - -" >>"$dir/policy.tsv"
kill -HUP $daemon
until_true grep -q "policy.tsv' line 4: there is no action 'explode'" "$dir/log"
run 0 policy --json --socket "$sock"
json 'assert len(d["rows"]) == 3 and d["path"].endswith("policy.tsv") and d["rows"][1]["actions"] == ["checkpoint+mark-suspect+validate+restore"]'
# And one that is no file is not waited for.
mv "$dir/policy.tsv" "$dir/kept.tsv"
mkfifo "$dir/policy.tsv"
kill -HUP $daemon
until_true grep -q "the policy '.*policy.tsv' is not a file" "$dir/log"
mv "$dir/kept.tsv" "$dir/policy.tsv"
run 0 policy --json --socket "$sock"
json 'assert len(d["rows"]) == 3'
printf '[detect]\ndry_run = yes\npolicy = %s\n' "$dir/policy.tsv" >"$dir/ckptd.conf"
sed -i '$d' "$dir/policy.tsv"
kill -HUP $daemon
until_true grep -q "configuration read again" "$dir/log"
stop_daemon
grep -q "^[0-9.]* exit node=0 job=1 rank=0 how=signal value=9" "$dir/record" || fail "record: $(cat "$dir/record")"

# It is a trace, also with a gap where ckptd was not running and behind one that was killed as it wrote.
printf '9999999 aliv' >>"$dir/record"
start_daemon --set "detect.record=$dir/record"
stop_daemon
grep -q "aliv$" "$dir/record" && fail "half a line stays"
[ "$(grep -c " gap$" "$dir/record")" -ge 2 ] || fail "no gap: $(grep gap "$dir/record")"
"$build/detect/replay/replay" run "$dir/record" >"$dir/replayed" 2>&1 || fail "replay: $(cat "$dir/replayed")"

# What is no trace is left alone, and keeps nobody from saving.
echo "a letter" >"$dir/letter"
start_daemon --set "detect.record=$dir/letter"
run 0 status --socket "$sock"
stop_daemon
grep -q "letter' is there and is no trace.*nothing is recorded" "$dir/log" || fail "nothing says that nothing is recorded"
[ "$(cat "$dir/letter")" = "a letter" ] || fail "the file is not as it was"

# What collectors would say, where samples can be injected.
if "$build/ckptd/ckptd" --list-faults | grep -q .; then
	mkfifo "$dir/inject"
	sed -i 's/\(check-failed.*\)record/\1drain/' "$dir/policy.tsv"
	export CKPTD_INJECT="$dir/inject"
	start_with_policy
	unset CKPTD_INJECT
	{ echo "0 name node=0 device=3 role=d text=\"nvme0n1\""; echo "0 check node=0 what=\"disk-write\" value=1 low=2 high=9 passed=0"; } >"$dir/inject"
	until_true dead check-failed
	run 1 why node --socket "$sock"
	says out "not done: drain"
	says out "dry_run is on"
	run 0 why nvme0n1 --socket "$sock"
	says out "nothing stands against disk nvme0n1"
	stop_daemon

	# What is built in drains a node that fails its check, when nothing is only tried out.
	inject () {
		printf '0 %s\n' "$@" "name node=0 device=200 role=d text=\"after$((inject = inject + 1))\"" >"$dir/inject"
		until_true ctl why "after$inject" --quiet --socket "$sock" >/dev/null
	}
	inject=0
	printf '[detect]\nkernel = no\nnet = no\ndisk = no\nmemory = no\npressure = no\ncheck = %s\n' "$dir/check" >"$dir/ckptd.conf"
	rm -rf "$data"
	export CKPTD_INJECT="$dir/inject"
	start_with_policy
	unset CKPTD_INJECT
	run 0 policy --socket "$sock"
	says out "from the table of ckptd; 12 actions an hour"
	says out "spares are 0, copies 0 or 1"
	run 0 policy diverging not-a-number --socket "$sock"
	says out "would be for you to do: roll-back"
	run 0 policy dead xid --json --socket "$sock"
	json 'assert d["decision"]["wanted"] == "checkpoint+mark-suspect+advice" and d["decision"]["advised"] == ""'
	inject 'check node=0 what="disk-write" value=1 low=2 high=9 passed=0'
	until_true dead '"drained"'
	refused | grep -q "is drained (by the policy)" || fail "drained by the policy: $(refused)"
	run 1 status --socket "$sock"
	says out " ago (by the policy): new runs are refused"
	run 0 clear node --socket "$sock"
	run 0 undrain --socket "$sock"
	[ -z "$(refused)" ] || fail "undrained: $(refused)"

	# What a node holds begins anew with it: flaps of its ports, errors of its memory, what the policy counts.
	inject 'name node=0 device=5 role=n text="eth9"' 'link node=0 device=5 up=1 downs=0' 'link node=0 device=5 up=1 downs=4' \
		'memory node=0 corrected=0 uncorrected=0' 'memory node=0 corrected=0 uncorrected=1'
	run 1 status --socket "$sock"
	says out "PROBLEM: network port eth9 is unstable (link-flaps) for "
	says out "'ckptctl why eth9' says"
	says out "is corrupting (memory-errors)"
	until_true dead check-ended # else what it finds comes after the clearing
	run 0 clear node --socket "$sock"
	says out "and 2 marks taken back"
	inject 'link node=0 device=5 up=1 downs=5' 'memory node=0 corrected=50 uncorrected=1'
	run 0 status --json --socket "$sock"
	json 'assert d["alarms"] == [] and d["suspects"] == [], d["alarms"]'
	inject 'link node=0 device=5 up=1 downs=9'
	run 1 why eth9 --socket "$sock"
	says out "network port eth9: unstable (link-flaps)"
	run 0 events --json --socket "$sock"
	event 'e["kind"] == "decision" and e["subject"]["words"] == "network port eth9"'
	json 'assert [e["times"] for e in d["events"] if e["kind"] == "decision" and e["subject"]["kind"] == "link"] == [1, 1]'

	# More alarms than can stand: that is said.
	{
		for i in $(seq 1030); do echo "0 check node=0 what=\"check-$i\" passed=0"; done
		echo '0 name node=0 device=199 role=d text="last"'
	} >"$dir/inject"
	until_true ctl why last --quiet --socket "$sock" >/dev/null
	run 1 why node --socket "$sock"
	says out "alarms that were not kept, as too many stand: node '"
	run 1 status --socket "$sock"
	says out "PROBLEM: the failure detector has no room for more alarms (the newest that was not kept: node '"
	run 0 events --json --socket "$sock"
	event 'e["kind"] == "unwatched" and "failing (check-failed) is not kept" in e["words"]'
	stop_daemon
fi

[ $failed = 0 ] && echo "ok events: $checks checks"
exit $failed
