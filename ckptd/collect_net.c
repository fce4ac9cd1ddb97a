/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_net.c - physical network ports: RDMA ports and Ethernet interfaces of /sys, and TCP's
 * retransmissions.
 *
 *   1. A port is one device, whatever shows it: an Ethernet interface that carries an RDMA port
 *      (RoCE) and IPoIB are part of that port. What has no hardware behind it (bridges, tunnels,
 *      bonds) and virtual functions are none.
 *   2. A port is told of from the first time it is up: one without a cable is no fault. One that is
 *      switched off by its administrator is not told of while it is.
 *
 * What is read from a firmware that hangs hangs too: nobody waits for this thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/collect_ethtool.h"
#include "ckptd/collect_file.h"
#include "ckptd/collect_source.h"

#define IB        "/sys/class/infiniband"
#define NET       "/sys/class/net"
#define SECOND    1000000000.0
#define NAME_SIZE 48
enum { COVERED_MAX = 64, ARP_INFINIBAND = 32, IFF_UP_BIT = 1 };

/* Summed: what says that bytes arrived damaged or were thrown away at this port. */
static const char *const ib_errors[] = {"symbol_error",
					"link_error_recovery",
					"port_rcv_errors",
					"port_xmit_discards",
					"local_link_integrity_errors",
					"excessive_buffer_overrun_errors",
					NULL};
/* Summed: what was sent again, by the names of several drivers (mlx5, bnxt_re, efa). */
static const char *const ib_retries[] = {"local_ack_timeout_err",
					 "packet_seq_err",
					 "rnr_nak_retry_err",
					 "roce_adp_retrans",
					 "to_retransmits",
					 "retrans_pkts",
					 NULL};
static const char *const net_errors[] = {"rx_errors", "tx_errors", NULL};

struct port {
	char name[NAME_SIZE];
	bool seen_up; /* (2) */
	struct collect_sum sent, received, errors, retries, downs, pauses;
};

struct net {
	const struct collect_config *config;
	size_t n_ports;
	struct port ports[COLLECT_DEVICES_MAX];
	struct collect_counter tcp_retries;
	uint64_t before_ns;
	/* for one read */
	struct collect_out *out;
	char covered[COVERED_MAX][NAME_SIZE]; /* interfaces that an RDMA port has (1) */
	size_t n_covered;
	bool any_ib;
	const char *device; /* whose ports are walked */
	unsigned up, known, paused;             /* paused: of how many it can be told */
	double sent, received, retries, pauses; /* more than the time before */
};

static int open_net(const struct collect_config *c, struct collect_out *out, void **ret,
		    struct err *e)
{
	struct net *n = alloc_zero(sizeof(*n));

	(void)out;
	if (!n)
		return err_code(e, -ENOMEM, "watch network ports");
	n->config = c;
	*ret = n;
	return 0;
}

/* NULL: there is no room for one more. */
static struct port *find_port(struct net *n, const char *name)
{
	struct port *p;

	for (size_t i = 0; i < n->n_ports; i++)
		if (strcmp(n->ports[i].name, name) == 0)
			return &n->ports[i];
	if (n->n_ports == COLLECT_DEVICES_MAX)
		return NULL;
	p = &n->ports[n->n_ports++];
	snprintf(p->name, sizeof(p->name), "%s", name);
	return p;
}

/* Those counters in folder that are there. */
static void sum_of(struct collect_sum *s, const char *const *names, const char *folder)
{
	for (; *names; names++)
		ignore_result(collect_sum_read(s, folder, *names, 1) /* another driver's */);
}

/* What one look at a port has found, beside its sums. */
struct look {
	bool up;
	float gbps;
	bool has_pauses;
};

/* Its counters are read once more. NULL: there is no room for it. */
static struct port *look_at(struct net *n, const char *name)
{
	struct port *p = find_port(n, name);

	if (!p)
		return NULL;
	collect_sum_begin(&p->sent);
	collect_sum_begin(&p->received);
	collect_sum_begin(&p->errors);
	collect_sum_begin(&p->retries);
	collect_sum_begin(&p->downs);
	collect_sum_begin(&p->pauses);
	return p;
}

static void tell_port(struct net *n, struct port *p, const struct look *l)
{
	struct sample *s;

	n->sent += (double)p->sent.more;
	n->received += (double)p->received.more;
	n->retries += (double)p->retries.more;
	if (l->has_pauses) {
		n->pauses += (double)p->pauses.more;
		n->paused++;
	}
	n->known++;
	n->up += l->up;
	if (!p->seen_up && !l->up)
		return; /* (2) */
	if (!p->seen_up)
		collect_name(n->out, (uint32_t)(p - n->ports), 'n', p->name);
	p->seen_up = true;
	s = collect_add(n->out, SAMPLE_LINK);
	s->device = (uint32_t)(p - n->ports);
	s->link.up = l->up;
	s->link.rate_gbps = l->gbps;
	s->link.sent = p->sent.sum;
	s->link.received = p->received.sum;
	s->link.errors = p->errors.sum;
	s->link.retries = p->retries.sum;
	s->link.downs = (uint32_t)p->downs.sum;
}

/* ---- Ethernet ---- */

static void add_statistics(struct port *p, const char *folder)
{
	char statistics[COLLECT_PATH_MAX + 16];

	snprintf(statistics, sizeof(statistics), "%s/statistics", folder);
	ignore_result(collect_sum_read(&p->sent, statistics, "tx_bytes", 1) /* it is going */);
	ignore_result(collect_sum_read(&p->received, statistics, "rx_bytes", 1) /* the same */);
	sum_of(&p->errors, net_errors, statistics);
}

/* The driver is asked by name, in our own network namespace: not where the tree is another's. */
static void add_pauses(const struct net *n, struct port *p, struct look *l, const char *name)
{
	uint64_t v;

	if (n->config->root[0] != '\0' || !ethtool_pause_frames(name, &v))
		return;
	collect_sum_file(&p->pauses, name, v);
	l->has_pauses = true;
}

static void add_downs(struct port *p, const char *folder, bool up)
{
	uint64_t v;

	if (collect_sum_read(&p->downs, folder, "carrier_down_count", 1))
		return;
	/* Before 4.16: each going down is a change, and so is each coming up. */
	if (collect_number(&v, "%s/carrier_changes", folder))
		collect_sum_file(&p->downs, folder, (v + !up) / 2);
}

/* Whether the interface is hardware of this machine and none of another's (1). */
static bool is_physical(const struct net *n, const char *name)
{
	const char *root = n->config->root;
	uint64_t type = 0;

	for (size_t i = 0; i < n->n_covered; i++)
		if (strcmp(n->covered[i], name) == 0)
			return false;
	if (!collect_exists("%s" NET "/%s/device", root, name) ||
	    collect_exists("%s" NET "/%s/device/physfn", root, name))
		return false;
	if (!collect_number(&type, "%s" NET "/%s/type", root, name))
		return false;
	return type != ARP_INFINIBAND || !n->any_ib;
}

static void each_interface(void *arg, const char *name)
{
	struct net *n = arg;
	char folder[COLLECT_PATH_MAX], state[32] = "";
	struct look l = {0};
	struct port *p;
	uint64_t v;

	if (!is_physical(n, name))
		return;
	snprintf(folder, sizeof(folder), "%s" NET "/%s", n->config->root, name);
	if (!collect_number(&v, "%s/flags", folder) || !(v & IFF_UP_BIT))
		return; /* (2) */
	if (collect_text(state, sizeof(state), "%s/operstate", folder) < 0)
		return;
	l.up = strcmp(state, "up") == 0 ||
	       (strcmp(state, "unknown") == 0 && collect_number(&v, "%s/carrier", folder) && v);
	if (l.up && collect_number(&v, "%s/speed", folder) && v < 10000000)
		l.gbps = (float)((double)v / 1000);
	p = look_at(n, name);
	if (!p)
		return;
	add_downs(p, folder, l.up);
	add_statistics(p, folder);
	add_pauses(n, p, &l, name);
	tell_port(n, p, &l);
}

/* ---- RDMA ---- */

/* Adds what the interface below a RoCE port counts, and has it passed over later (1). */
static void add_interface(struct net *n, struct port *p, struct look *l, const char *folder)
{
	char name[NAME_SIZE], of[COLLECT_PATH_MAX];

	if (collect_text(name, sizeof(name), "%s/gid_attrs/ndevs/0", folder) <= 0 ||
	    strchr(name, '/') || name[0] == '.' || n->n_covered == COVERED_MAX)
		return;
	snprintf(n->covered[n->n_covered++], sizeof(n->covered[0]), "%s", name);
	snprintf(of, sizeof(of), "%s" NET "/%s", n->config->root, name);
	add_statistics(p, of);
	add_pauses(n, p, l, name);
}

static void read_counters(struct port *p, const char *folder)
{
	static const char *const downs[] = {"link_downed", NULL};
	char counters[COLLECT_PATH_MAX + 16];

	snprintf(counters, sizeof(counters), "%s/counters", folder);
	/* They count words of four bytes. */
	ignore_result(collect_sum_read(&p->sent, counters, "port_xmit_data", 4) /* it is going */);
	ignore_result(collect_sum_read(&p->received, counters, "port_rcv_data", 4) /* the same */);
	sum_of(&p->errors, ib_errors, counters);
	sum_of(&p->downs, downs, counters);
	snprintf(counters, sizeof(counters), "%s/hw_counters", folder);
	sum_of(&p->retries, ib_retries, counters);
}

static void each_port(void *arg, const char *number)
{
	struct net *n = arg;
	char folder[COLLECT_PATH_MAX], text[80], name[NAME_SIZE];
	struct look l = {0};
	struct port *p;

	snprintf(folder, sizeof(folder), "%s" IB "/%s/ports/%s", n->config->root, n->device,
		 number);
	if (collect_text(text, sizeof(text), "%s/state", folder) < 0)
		return;
	n->any_ib = true;
	l.up = strncmp(text, "4:", 2) == 0; /* "4: ACTIVE" */
	if (collect_text(text, sizeof(text), "%s/phys_state", folder) > 0 &&
	    strncmp(text, "3:", 2) == 0)
		return; /* "3: Disabled", by somebody (2) */
	if (l.up && collect_text(text, sizeof(text), "%s/rate", folder) > 0)
		l.gbps = strtof(text, NULL); /* "400 Gb/sec (4X NDR)" */
	if (!(l.gbps > 0 && l.gbps < 100000))
		l.gbps = 0;
	p = snprintf(name, sizeof(name), "%s:%s", n->device, number) < (int)sizeof(name)
		    ? look_at(n, name)
		    : NULL;
	if (!p)
		return;
	read_counters(p, folder);
	if (collect_text(text, sizeof(text), "%s/link_layer", folder) > 0 &&
	    strcmp(text, "Ethernet") == 0)
		add_interface(n, p, &l, folder);
	tell_port(n, p, &l);
}

static void each_device(void *arg, const char *name)
{
	struct net *n = arg;
	const char *root = n->config->root;

	if (!collect_exists("%s" IB "/%s/device", root, name) ||
	    collect_exists("%s" IB "/%s/device/physfn", root, name))
		return;
	n->device = name;
	if (collect_each(each_port, n, "%s" IB "/%s/ports", root, name) < 0)
		return; /* it is being removed */
}

/* ---- TCP ---- */

/* The number of column RetransSegs: names in one line "Tcp: ...", values in the next. */
static bool tcp_retries(const char *text, uint64_t *ret)
{
	const char *names = strstr(text, "Tcp: "), *values, *at;
	char *end;
	int column = 0;

	values = names ? strstr(names + 1, "\nTcp: ") : NULL;
	at = names ? strstr(names, " RetransSegs") : NULL;
	if (!values || !at || at > values)
		return false;
	for (const char *p = names; p <= at; p++)
		column += *p == ' ';
	for (values += 5; column > 1; column--) {
		values += strspn(values, " ");
		values += strcspn(values, " \n");
	}
	*ret = strtoull(values, &end, 10);
	return end != values;
}

static void read_tcp(struct net *n)
{
	char text[4096];
	uint64_t v;

	if (collect_text(text, sizeof(text), "%s/proc/net/snmp", n->config->root) > 0 &&
	    tcp_retries(text, &v))
		n->retries += (double)collect_count(&n->tcp_retries, v);
}

static int read_source(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	struct net *n = state;
	double seconds = n->before_ns ? (double)(now_ns - n->before_ns) / SECOND : 0;
	int r;

	n->out = out;
	n->n_covered = 0;
	n->any_ib = false;
	n->up = n->known = n->paused = 0;
	n->sent = n->received = n->retries = n->pauses = 0;
	r = collect_each(each_device, n, "%s" IB, n->config->root);
	if (r < 0 && r != -ENOENT)
		return err_code(e, r, "read '%s" IB "'", n->config->root);
	r = collect_each(each_interface, n, "%s" NET, n->config->root);
	if (r < 0 && r != -ENOENT)
		return err_code(e, r, "read '%s" NET "'", n->config->root);
	read_tcp(n);
	if (seconds > 0 && n->known) {
		out->metrics[METRIC_NET_SEND] = (float)(n->sent / seconds);
		out->metrics[METRIC_NET_RECEIVE] = (float)(n->received / seconds);
	}
	if (seconds > 0 && n->paused)
		out->metrics[METRIC_NET_PAUSE] = (float)(n->pauses / seconds);
	if (seconds > 0)
		out->metrics[METRIC_NET_RETRY] = (float)(n->retries / seconds);
	n->before_ns = now_ns;
	collect_state(out, "%u port%s, %u up", n->known, n->known == 1 ? "" : "s", n->up);
	return 0;
}

const struct collect_source collect_net = {
	.id = COLLECT_NET, .open = open_net, .read = read_source, .close = alloc_free};
