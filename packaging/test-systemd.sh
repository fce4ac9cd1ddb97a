#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The service as `make install` installs it, under a systemd that is booted for this test
# (boot-systemd.sh): it starts, reloads and restarts, the watchdog ends one that hangs, and what lies
# only in memory is loaded byte for byte after restarts and after any number of SIGKILLs.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires test "$(id -u)" = 0
requires test -x /lib/systemd/systemd
requires unshare -m -p -u -i -n -C --fork sh -c \
	'mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir upper work root cgroup &&
	mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root &&
	mount -t cgroup2 cgroup2 cgroup'
requires sh -c '! grep -q "^systemdsystemunitdir = no$" "$top_builddir/Makefile"'
requires /usr/bin/python3 -c 'import numpy'
# The unit confines ckptd: to it a program below /home or /tmp does not exist, and it has not what the
# run-time library of a sanitizer needs.
prefix=$(sed -n 's/^prefix = //p' "$top_builddir/Makefile")
requires expr "$prefix" : '/usr$\|/usr/local$\|/opt/'
requires sh -c '! nm -D "$top_builddir/.libs/libckpt.so" | grep -q __[at]san'
scratch
unset MAKEFLAGS MAKELEVEL MFLAGS
booter= systemd=

die() {
	echo "$*"
	tail -n 40 "$scratch/console" "$scratch"/trainer.* 2>/dev/null
	[ -z "$systemd" ] || in_it journalctl --no-pager -n 60 2>/dev/null || true
	exit 1
}

# Whatever ends this shell ends systemd: by the trap, else by the death signal of its parent.
end() {
	[ -z "$systemd" ] || kill -KILL "$systemd" 2>/dev/null || true
	[ -z "$booter" ] || { kill -KILL "$booter" 2>/dev/null || true; wait "$booter" || true; }
	[ ! -s "$scratch/cgroup" ] || unshare -m --propagation private sh -c '
		mount -t cgroup2 cgroup2 "$1/cgroups"
		for try in 1 2 3 4 5 6 7 8 9 10; do
			find "$1/cgroups$(cat "$1/cgroup")" -depth -type d -exec rmdir {} + 2>/dev/null
			[ -d "$1/cgroups$(cat "$1/cgroup")" ] || exit 0
			sleep 0.2
		done' sh "$scratch" || true
	rm -rf --one-file-system "$scratch"
}
trap end EXIT

# ---- What is installed, and a systemd beside it

mkdir "$scratch/mnt" "$scratch/cgroups" "$scratch/dest"
make -s -C "$top_builddir" install DESTDIR="$scratch/dest" >"$scratch/console" 2>&1 ||
	die "make install failed"
unit=$(find "$scratch/dest" -name ckptd.service)
[ -n "$unit" ] || die "no unit is installed"
unit_path=${unit#"$scratch/dest"}
unit_path=${unit_path%/*}
python=$(sed -n 's/^pythondir = //p' "$top_builddir/Makefile" | sed "s|[$][({]prefix[)}]|$prefix|")
library=$(find "$scratch/dest" -name libckpt.so.0)
library=${library#"$scratch/dest"}

units=$scratch/dest/units
mkdir -p "$units" "$scratch/dest/etc/ckptd" "$scratch/dest/etc/sysusers.d"
printf '[Unit]\nDefaultDependencies=no\n' |
	tee "$units/sysinit.target" "$units/shutdown.target" >"$units/umount.target"
printf '[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\nAfter=sysinit.target\n' \
	>"$units/basic.target"
printf '[Unit]\nRequires=basic.target systemd-journald.service\nAfter=basic.target\n' \
	>"$units/test.target"
for name in systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket; do
	cp "/lib/systemd/system/$name" "$units/"
done
mkdir -p "$scratch/dest/etc/systemd/journald.conf.d"
printf '[Journal]\nAudit=no\nReadKMsg=no\n' >"$scratch/dest/etc/systemd/journald.conf.d/test.conf"
printf 'u trainer -\nm trainer ckptd\n' >"$scratch/dest/etc/sysusers.d/trainer.conf"
# Nothing goes to disk by itself: the detector would ask for that when it sees a trainer killed.
printf '[checkpoint]\npersist_every = 1000000\n[detect]\nenabled = no\n' \
	>"$scratch/dest/etc/ckptd/ckptd.conf"
cp "$top_srcdir/packaging/systemd_trainer.py" "$units/"

setsid setpriv --pdeathsig KILL sh "$top_srcdir/packaging/boot-systemd.sh" "$scratch" "$unit_path" \
	>"$scratch/console" 2>&1 </dev/null &
booter=$!

# within SECONDS COMMAND... - waits until the command succeeds.
within() {
	tries=$(($1 * 10))
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		sleep 0.1
	done
}
in_it() {
	timeout 30 nsenter -t "$systemd" -m -p -n -C -u -i "$@"
}
ctl() {
	in_it systemctl "$@"
}
find_systemd() {
	systemd=$(cat "/proc/$booter/task/$booter/children")
	systemd=${systemd%% *}
	[ -n "$systemd" ] && [ "$(cat "/proc/$systemd/comm")" = systemd ]
}
within 20 find_systemd || die "systemd does not start"
within 20 ctl is-active test.target || die "systemd does not boot"

# ---- The service

property() {
	ctl show -P "$1" ckptd
}
restarted() {
	pid=$(property MainPID)
	[ "$pid" -gt 1 ] && [ "$pid" != "$before" ]
}
# logged WORDS FIELD=VALUE... - an entry of ckptd's in the journal has these words and fields.
logged() {
	words=$1
	shift
	in_it journalctl --no-pager -q _SYSTEMD_UNIT=ckptd.service "$@" -o cat | grep -q "$words"
}
# trainer STEP LOADED TIER - a trainer that loads this from there, saves STEP and stays.
trainer() {
	nsenter -t "$systemd" -m -p -n -C -u -i env PYTHONPATH="$python" CKPT_LIBRARY="$library" \
		setpriv --reuid trainer --regid trainer --init-groups \
		/usr/bin/python3 /units/systemd_trainer.py "$1" >"$scratch/trainer.$1" 2>&1 &
	trainer=$!
	within 30 grep -q "^saved $1$" "$scratch/trainer.$1" || die "step $1 is not saved"
	grep -q "^loaded $2 from $3$" "$scratch/trainer.$1" || die "not loaded: step $2 from $3"
}
# nsenter has become a shell's child that lies in the other pid namespace: it dies like any other.
trainer_dies() {
	for child in $trainer $(cat "/proc/$trainer/task/$trainer/children"); do
		kill -KILL "$child"
	done
	wait "$trainer" 2>/dev/null || true
}
only_in_memory() {
	in_it "$prefix/bin/ckptctl" list kept --json >"$scratch/list" || die "ckptctl list failed"
	/usr/bin/python3 - "$1" "$scratch/list" <<'END' || die "step $1 is not in memory alone"
import json, sys
step, path = int(sys.argv[1]), sys.argv[2]
text = open(path).read()
rows = [c for j in json.loads(text)["jobs"] for c in j["checkpoints"] if c["step"] == step]
assert rows and rows[0]["state"] == "committed" and rows[0]["disk"] != "durable", text
END
}

in_it systemd-sysusers
ctl enable --now ckptd || die "the service does not start"
[ "$(property ActiveState)" = active ] || die "the service is $(property ActiveState)"
trainer 100 nothing nowhere
only_in_memory 100
echo "ok start"

before=$(property MainPID)
in_it sh -c 'printf "[log]\nlevel = debug\n" >>/etc/ckptd/ckptd.conf'
ctl reload ckptd || die "reload failed"
within 10 logged 'configuration read again' || die "the reload is not logged"
[ "$(property MainPID)" = "$before" ] || die "a reload started another ckptd"
# A file that cannot be used: the reload fails, ckptd goes on and says so until it is mended.
in_it sh -c 'cp /etc/ckptd/ckptd.conf /etc/ckptd/good && echo "level = loud" >>/etc/ckptd/ckptd.conf'
! ctl reload ckptd 2>/dev/null || die "a reload of a configuration that cannot be used succeeds"
[ "$(property MainPID)" = "$before" ] || die "a reload that failed started another ckptd"
status_says() {
	in_it "$prefix/bin/ckptctl" status >"$scratch/status" || true
	grep -q "$1" "$scratch/status"
}
within 10 status_says 'PROBLEM.*cannot be used' || die "status does not say that it cannot be used"
in_it mv /etc/ckptd/good /etc/ckptd/ckptd.conf
ctl reload ckptd || die "reload failed"
within 10 eval '! status_says "cannot be used"' || die "status says so behind a good reload"
echo "ok reload"

trainer_dies
ctl restart ckptd || die "restart failed"
trainer 101 100 memory
only_in_memory 101
echo "ok restart"

# More often, and faster, than the usual limit of systemd (5 starts in 10 s) allows.
restarts=$(property NRestarts)
for kill in 1 2 3 4 5 6 7 8 9 10; do
	before=$(property MainPID)
	[ "$before" -gt 1 ] || die "there is no ckptd to kill: $(property SubState)"
	in_it kill -KILL "$before"
	within 20 restarted || die "systemd gave up after SIGKILL number $kill: $(property Result)"
done
[ "$(property NRestarts)" = $((restarts + 10)) ] || die "$(property NRestarts) restarts"
within 30 ctl is-active ckptd || die "ckptd is not ready after ten SIGKILLs"
only_in_memory 101
trainer_dies
trainer 102 101 memory
echo "ok killed"

within 10 logged 'process of rank 0 ended' CKPT_JOB=kept PRIORITY=6 || die "no field CKPT_JOB"
within 10 logged 'epoch 2 (new run), base step 100' CKPT_JOB=kept CKPT_STEP=100 ||
	die "no field CKPT_STEP"
! logged . CKPT_JOB=kept CKPT_STEP=99 || die "a line about a step that is none"
echo "ok journal"

# One that hangs: systemd aborts it and starts another. The unit's 30 s are shortened here.
[ "$(property WatchdogUSec)" = 30s ] || die "the unit's watchdog is $(property WatchdogUSec)"
in_it sh -c 'mkdir /units/ckptd.service.d &&
	printf "[Service]\nWatchdogSec=4\nLimitCORE=0\n" >/units/ckptd.service.d/short.conf'
ctl daemon-reload
before=$(property MainPID)
in_it kill -KILL "$before"
within 20 restarted && within 20 ctl is-active ckptd || die "not restarted after SIGKILL"
before=$(property MainPID)
in_it kill -STOP "$before"
within 30 restarted || die "no watchdog ended the ckptd that hung"
in_it journalctl --no-pager -q _PID=1 -o cat | grep -q 'ckptd.service: Watchdog timeout' ||
	die "something else than the watchdog ended the ckptd that hung"
within 30 ctl is-active ckptd || die "ckptd is not ready after the watchdog"
only_in_memory 102
trainer_dies
trainer 103 102 memory
echo "ok watchdog"

# The disk of the data folder goes and comes back: neither ckptd nor its memory goes with the mount.
trainer_dies
ctl stop ckptd || die "stop failed"
in_it sh -c 'mkdir /disk && cp -a /var/lib/ckptd/. /disk && chown ckptd:ckptd /disk &&
	rm -rf /var/lib/ckptd/* && mount --bind /disk /var/lib/ckptd'
within 10 ctl is-active var-lib-ckptd.mount || die "systemd does not see the mount"
ctl start ckptd
trainer 104 103 disk
only_in_memory 104
stored=$(property NFileDescriptorStore)
ctl stop var-lib-ckptd.mount || die "the mount does not stop"
ctl is-active ckptd || die "ckptd ended with the mount of its data folder"
only_in_memory 104
in_it "$prefix/bin/ckptctl" verify >"$scratch/verify" 2>&1 &&
	die "verify takes the empty mount point for the data folder"
grep -q 'is not the one that ckptd works in' "$scratch/verify" || die "$(cat "$scratch/verify")"
before=$(property MainPID)
in_it kill -KILL "$before"
within 20 logged 'keeps memory of jobs of the data folder whose id is' || die "it is not said"
within 20 eval '[ "$(property NRestarts)" -gt 2 ]' || die "it is not started again"
[ "$(property NFileDescriptorStore)" = "$stored" ] || die "the fd store has lost memory"
in_it sh -c '[ -z "$(ls -A /var/lib/ckptd)" ]' || die "a new data folder was made"
in_it mount --bind /disk /var/lib/ckptd
within 30 ctl is-active ckptd || die "ckptd does not go on when the disk is back"
only_in_memory 104
trainer_dies
trainer 105 104 memory
echo "ok mount"

# A stop writes what is only in memory, and lets go of the memory.
trainer_dies
ctl stop ckptd || die "stop failed"
[ "$(property Result)" = success ] || die "stopped with $(property Result)"
ctl start ckptd
trainer 106 105 disk
trainer_dies
echo "ok stop"
