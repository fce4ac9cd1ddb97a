#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# boot-systemd.sh FOLDER UNIT-PATH - becomes a systemd, as process 1 of namespaces of its own, whose
# files are those of this machine with FOLDER/dest laid over them. Started as root.
#
#   1. Whatever that systemd and its services write, remove or mount stays in a tmpfs that ends with
#      them: its root is an overlay, and /dev, /run, /tmp and what else it needs are its own.
#   2. Its cgroups lie below one that is made here, a child of the caller's; FOLDER/cgroup names it,
#      below the mount at FOLDER/cgroups of whoever mounts cgroup2 there. The caller removes it.
#   3. Its units are those of FOLDER/units and UNIT-PATH: nothing else of this machine starts.
#
# It ends with SIGKILL of its process 1, which is the child of the process that this script becomes,
# or with that process. Where a mount or a namespace is not allowed it fails before anything is made.
set -e

inside() {
	mount --make-rprivate /
	mount -t tmpfs -o mode=755 tmpfs "$1/mnt"
	cd "$1/mnt"
	mkdir upper work root
	cp -a "$1/dest/." upper/
	mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
	cd root
	rm -f etc/fstab
	mount -t proc proc proc
	mount -o bind,ro proc/sys proc/sys
	mount -t sysfs -o ro sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs -o mode=755 tmpfs dev
	for node in null zero full random urandom tty; do
		[ -e "/dev/$node" ] || continue
		: >"dev/$node"
		mount --bind "/dev/$node" "dev/$node"
	done
	mkdir dev/shm dev/pts
	mount -t tmpfs -o mode=1777 tmpfs dev/shm
	for folder in run tmp var/tmp; do
		mount -t tmpfs -o mode=1777 tmpfs "$folder"
	done
	chmod 755 run
	pivot_root . .
	umount -l .
	exec chroot . env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		SYSTEMD_UNIT_PATH="/units:$2" SYSTEMD_GENERATOR_PATH=/units/no-generators \
		SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/units/no-generators /lib/systemd/systemd \
		--system --unit=test.target --log-target=journal --show-status=no
}

if [ "$1" = inside ]; then
	inside "$2" "$3"
fi
# A mount namespace comes first: the hierarchy may be mounted nowhere, and elsewhere than expected.
if [ "$1" != outside ]; then
	exec unshare -m --propagation private sh "$0" outside "$1" "$2"
fi
mount -t cgroup2 cgroup2 "$2/cgroups"
cgroup=$(sed -n 's/^0:://p' /proc/self/cgroup)/ckptd-test.$$
mkdir "$2/cgroups$cgroup"
echo "$cgroup" >"$2/cgroup"
echo $$ >"$2/cgroups$cgroup/cgroup.procs"
exec unshare -m -p -u -i -n -C --fork --kill-child sh "$0" inside "$2" "$3"
