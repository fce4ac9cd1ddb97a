/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.c - see reach.h. Looks at the socket and at the databases of users and groups; what it
 * cannot find out it leaves out. No state; any thread.
 */
#include <config.h>

#include "client/reach.h"

#include <assert.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ENTRY_MAX = 8192, NAME_MAX_SHOWN = 40 };

/* Its number where it has no name. */
static void name_group(gid_t gid, char buf[NAME_MAX_SHOWN + 1])
{
	char entry[ENTRY_MAX];
	struct group g, *found = NULL;

	if (getgrgid_r(gid, &g, entry, sizeof(entry), &found) == 0 && found)
		snprintf(buf, NAME_MAX_SHOWN + 1, "%s", g.gr_name);
	else
		snprintf(buf, NAME_MAX_SHOWN + 1, "%lu", (unsigned long)gid);
}

static void name_user(uid_t uid, char buf[NAME_MAX_SHOWN + 1])
{
	char entry[ENTRY_MAX];
	struct passwd p, *found = NULL;

	if (getpwuid_r(uid, &p, entry, sizeof(entry), &found) == 0 && found)
		snprintf(buf, NAME_MAX_SHOWN + 1, "%s", p.pw_name);
	else
		snprintf(buf, NAME_MAX_SHOWN + 1, "%lu", (unsigned long)uid);
}

const char *reach_refused(const char *path, char quote, char buf[REACH_TEXT_MAX])
{
	char name[NAME_MAX_SHOWN + 1];
	struct stat st;

	assert(path && quote);
	if (stat(path, &st) != 0) {
		snprintf(buf, REACH_TEXT_MAX, "this user may not enter its folder");
	} else if ((st.st_mode & S_IWGRP) == 0) {
		name_user(st.st_uid, name);
		snprintf(buf, REACH_TEXT_MAX, "its owner '%s' alone may", name);
	} else if (st.st_gid == 0) {
		snprintf(buf, REACH_TEXT_MAX,
			 "its group 'root' alone may: as root, %cgroupadd --system ckptd%c, "
			 "restart ckptd, which gives its socket to that group, and %cadduser USER "
			 "ckptd%c",
			 quote, quote, quote, quote);
	} else {
		name_group(st.st_gid, name);
		snprintf(buf, REACH_TEXT_MAX,
			 "its group '%s' alone may: root lets a user in with %cadduser USER %s%c, "
			 "which holds from the next login",
			 name, quote, name, quote);
	}
	return buf;
}

const char *reach_hint(const char *socket)
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	assert(socket);
	if ((run && run[0]) || strcmp(socket, "/run/ckptd/ckptd.sock") != 0)
		return "";
	return "XDG_RUNTIME_DIR is not set here, and a user's own ckptd is found by it: set it as "
	       "where that runs; or ";
}
