#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What `make install` installs for systemd: systemd accepts the unit, the user and the folders, finds
# the unit well confined, and the unit starts the ckptd that is installed beside it.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires systemd-analyze --version
requires sh -c '! grep -q "^systemdsystemunitdir = no$" "$top_builddir/Makefile"'
scratch
unset MAKEFLAGS MAKELEVEL MFLAGS
export SYSTEMD_LOG_LEVEL=warning SYSTEMD_COLORS=no

make -s -C "$top_builddir" install DESTDIR="$scratch/dest" >"$scratch/said" 2>&1 || {
	cat "$scratch/said"
	exit 1
}
installed=$(find "$scratch/dest" -name ckptd.service)
[ -n "$installed" ] || { echo "no unit is installed"; exit 1; }

# unit_is_good SED-SCRIPT - the unit, changed by the script, starts an installed program, is
# understood and confined. The program lies below DESTDIR here, so the copy that systemd looks at
# names it there. Exposure goes from 0 to 10, the threshold counts tenths; what systemd does not
# understand it only says. Two of them are for the kernel's messages: /dev/kmsg needs CAP_SYSLOG, and
# neither PrivateDevices= nor ProtectKernelLogs=. A systemd before 254 ignores what only a newer one
# knows, and may say so.
newer="Unknown key (name )?'(RestartSteps|RestartMaxDelaySec|FileDescriptorStorePreserve)' in section"
unit_is_good() {
	sed -e "$1" "$installed" >"$scratch/as-installed"
	program=$(sed -n 's/^ExecStart=//p' "$scratch/as-installed")
	if [ ! -x "$scratch/dest$program" ] || [ "${program##*/}" != ckptd ]; then
		echo "ExecStart=$program is not the installed ckptd" >"$scratch/said"
		return 1
	fi
	sed "s|^ExecStart=|&$scratch/dest|" "$scratch/as-installed" >"$scratch/ckptd.service"
	systemd-analyze security --no-pager --offline=true --threshold=19 \
		"$scratch/ckptd.service" >"$scratch/said" 2>&1 || return 1
	tail -n 1 "$scratch/said"
	systemd-analyze verify --man=no "$scratch/ckptd.service" >"$scratch/said" 2>&1 || return 1
	if grep -vE "$newer" "$scratch/said" | grep -F ckptd.service; then
		return 1
	fi
}

unit_is_good '' || { cat "$scratch/said"; exit 1; }
grep -q '^DeviceAllow=/dev/kmsg r$' "$scratch/ckptd.service"
grep -q '^DeviceAllow=char-nvidia\* rw$' "$scratch/ckptd.service"
for damage in '/^SystemCallFilter/d' '$aNonsense=yes' 's/^Type=.*/Type=nonsense/' \
	's|^ExecStart=.*|ExecStart=@sbindir@/ckptd|' 's|^ExecStart=.*|ExecStart=/usr/bin/true|'; do
	if unit_is_good "$damage" >/dev/null; then
		echo "a unit damaged by $damage was found good"
		exit 1
	fi
done

sysusers=$(find "$scratch/dest" -path '*/sysusers.d/ckptd.conf')
tmpfiles=$(find "$scratch/dest" -path '*/tmpfiles.d/ckptd.conf')
mkdir -p "$scratch/root/etc" "$scratch/root/run" "$scratch/root/var/lib"
systemd-sysusers --root="$scratch/root" "$sysusers"
grep -q '^ckptd:' "$scratch/root/etc/passwd"
grep -q '^ckptd:' "$scratch/root/etc/group"
grep -q '^User=ckptd$' "$scratch/ckptd.service" && grep -q '^Group=ckptd$' "$scratch/ckptd.service"
[ "$(id -u)" = 0 ] || { echo "folders are made by root alone"; exit 0; }
systemd-tmpfiles --root="$scratch/root" --create "$tmpfiles"
[ "$(stat -c %a "$scratch/root/run/ckptd")" = 755 ]
[ "$(stat -c %a "$scratch/root/var/lib/ckptd")" = 750 ]
