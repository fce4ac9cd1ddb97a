#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# systemd accepts the unit, the user and the folders, and finds the unit well confined.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires systemd-analyze --version
scratch
export SYSTEMD_LOG_LEVEL=warning SYSTEMD_COLORS=no

printf '#!/bin/sh\n' >"$scratch/ckptd"
chmod +x "$scratch/ckptd"

# unit_is_good SED-SCRIPT - the unit, changed by the script, is understood and confined. Exposure
# goes from 0 to 10, the threshold counts tenths; what systemd does not understand it only says.
# Two of them are for the kernel's messages: /dev/kmsg needs CAP_SYSLOG, and neither PrivateDevices=
# nor ProtectKernelLogs=.
unit_is_good() {
	sed -e "s|@sbindir@|$scratch|g" -e "$1" "$top_srcdir/packaging/ckptd.service.in" \
		>"$scratch/ckptd.service"
	systemd-analyze security --no-pager --offline=true --threshold=19 \
		"$scratch/ckptd.service" >"$scratch/said" 2>&1 || return 1
	tail -n 1 "$scratch/said"
	systemd-analyze verify --man=no "$scratch/ckptd.service" >"$scratch/said" 2>&1 || return 1
	if grep -F ckptd.service "$scratch/said"; then
		return 1
	fi
}

unit_is_good '' || { cat "$scratch/said"; exit 1; }
grep -q '^DeviceAllow=/dev/kmsg r$' "$scratch/ckptd.service"
grep -q '^DeviceAllow=char-nvidia\* rw$' "$scratch/ckptd.service"
for damage in '/^SystemCallFilter/d' '$aNonsense=yes' 's/^Type=.*/Type=nonsense/'; do
	if unit_is_good "$damage" >/dev/null; then
		echo "a unit damaged by $damage was found good"
		exit 1
	fi
done

mkdir -p "$scratch/root/etc" "$scratch/root/run" "$scratch/root/var/lib"
systemd-sysusers --root="$scratch/root" "$top_srcdir/packaging/ckptd.sysusers"
grep -q '^ckptd:' "$scratch/root/etc/passwd"
grep -q '^ckptd:' "$scratch/root/etc/group"
grep -q '^User=ckptd$' "$scratch/ckptd.service" && grep -q '^Group=ckptd$' "$scratch/ckptd.service"
[ "$(id -u)" = 0 ] || { echo "folders are made by root alone"; exit 0; }
systemd-tmpfiles --root="$scratch/root" --create "$top_srcdir/packaging/ckptd.tmpfiles"
[ "$(stat -c %a "$scratch/root/run/ckptd")" = 755 ]
[ "$(stat -c %a "$scratch/root/var/lib/ckptd")" = 750 ]
