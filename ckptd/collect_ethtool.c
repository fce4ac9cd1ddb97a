/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_ethtool.c - pause frames of an interface, by SIOCETHTOOL.
 *
 * Drivers call them what they like: "rx_prio3_pause" (mlx5), "rx_pfc_ena_frames_pri3" (bnxt_en),
 * "rx_priority_3_xon"... What is counted here has a priority and a pause in its name and is no
 * duration or transition; where there is none of these, what is called a pause at all. On the
 * thread of collect_net.c: the driver may ask its firmware, and hang.
 */
#include <config.h>

#include "ckptd/collect_ethtool.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"

enum { STATISTICS_MAX = 8192, STATISTICS_ROOM = 2 * STATISTICS_MAX };
_Static_assert(ETHTOOL_NAME_BYTES == ETH_GSTRING_LEN, "names of the kernel");

static bool has(const char *name, const char *word)
{
	return strstr(name, word) != NULL;
}

/* 2: of a priority, 1: of the link, 0: neither. */
static int pause_kind(const char *name)
{
	if (has(name, "duration") || has(name, "transition") || has(name, "_us") ||
	    has(name, "storm") || has(name, "xon"))
		return 0;
	if (has(name, "pfc") && has(name, "frames"))
		return 2;
	if (!has(name, "pause"))
		return 0;
	return has(name, "prio") ? 2 : 1;
}

bool ethtool_sum_pause(const char *names, const uint64_t *values, size_t n, uint64_t *ret)
{
	uint64_t sums[3] = {0};
	unsigned found[3] = {0};
	char name[ETHTOOL_NAME_BYTES + 1] = "";

	for (size_t i = 0; i < n; i++) {
		int kind;

		memcpy(name, names + i * ETHTOOL_NAME_BYTES, ETHTOOL_NAME_BYTES);
		kind = pause_kind(name);
		sums[kind] += values[i];
		found[kind]++;
	}
	*ret = found[2] ? sums[2] : sums[1];
	return found[2] || found[1];
}

static int ask(int fd, const char *interface, void *what)
{
	struct ifreq request = {0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interface);
	request.ifr_data = what;
	return ioctl(fd, SIOCETHTOOL, &request) == 0 ? 0 : -errno;
}

static bool read_statistics(int fd, const char *interface, size_t n, uint64_t *ret)
{
	/* The kernel writes as many as the driver has at that moment, whatever was asked for: there
	 * is room for a driver that has twice as many by now. */
	struct ethtool_gstrings *names =
		alloc_zero(sizeof(*names) + STATISTICS_ROOM * ETH_GSTRING_LEN);
	struct ethtool_stats *values =
		alloc_zero(sizeof(*values) + STATISTICS_ROOM * sizeof(uint64_t));
	bool good = names && values;

	if (good) {
		*names = (struct ethtool_gstrings){ETHTOOL_GSTRINGS, ETH_SS_STATS, (uint32_t)n};
		*values = (struct ethtool_stats){ETHTOOL_GSTATS, (uint32_t)n};
		good = ask(fd, interface, names) == 0 && ask(fd, interface, values) == 0 &&
		       names->len == n && values->n_stats == n;
	}
	if (good)
		good = ethtool_sum_pause((const char *)names->data,
					 (const uint64_t *)(const void *)values->data, n, ret);
	alloc_free(names);
	alloc_free(values);
	return good;
}

bool ethtool_pause_frames(const char *interface, uint64_t *ret)
{
	struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool good;

	if (fd < 0)
		return false;
	good = strlen(interface) < IFNAMSIZ && ask(fd, interface, &info) == 0 && info.n_stats > 0 &&
	       info.n_stats <= STATISTICS_MAX && read_statistics(fd, interface, info.n_stats, ret);
	close(fd);
	return good;
}
