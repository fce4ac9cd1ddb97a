/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network ports on made-up trees: Ethernet, InfiniBand, RoCE, and what is no port.
 */
#include <config.h>

#include <math.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "ckptd/collect_ethtool.h"
#include "ckptd/test_collect_tree.h"

static int setup(void **state)
{
	*state = tree_new(&collect_net);
	return 0;
}

static int teardown(void **state)
{
	tree_free(*state);
	return 0;
}

static void put(struct tree *t, const char *folder, const char *name, const char *text)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	tree_put(t, path, text);
}

static void put_number(struct tree *t, const char *folder, const char *name, unsigned long v)
{
	char text[32];

	snprintf(text, sizeof(text), "%lu\n", v);
	put(t, folder, name, text);
}

static void put_interface(struct tree *t, const char *folder, bool up, unsigned long bytes)
{
	put(t, folder, "device/vendor", "0x15b3\n");
	put(t, folder, "type", "1\n");
	put(t, folder, "flags", "0x1003\n");
	put(t, folder, "operstate", up ? "up\n" : "down\n");
	put(t, folder, "carrier", up ? "1\n" : "0\n");
	put(t, folder, "carrier_down_count", up ? "2\n" : "3\n");
	put(t, folder, "speed", up ? "100000\n" : "-1\n");
	put_number(t, folder, "statistics/tx_bytes", bytes);
	put_number(t, folder, "statistics/rx_bytes", bytes / 2);
	put_number(t, folder, "statistics/rx_errors", 5);
	put_number(t, folder, "statistics/tx_errors", 1);
}

static void put_port(struct tree *t, const char *folder, bool up, const char *layer)
{
	put(t, folder, "../../device/vendor", "0x15b3\n");
	put(t, folder, "state", up ? "4: ACTIVE\n" : "1: DOWN\n");
	put(t, folder, "phys_state", up ? "5: LinkUp\n" : "2: Polling\n");
	put(t, folder, "rate", "400 Gb/sec (4X NDR)\n");
	put(t, folder, "link_layer", layer);
	put_number(t, folder, "counters/port_xmit_data", 1000);
	put_number(t, folder, "counters/port_rcv_data", 2000);
	put_number(t, folder, "counters/symbol_error", 7);
	put_number(t, folder, "counters/port_rcv_errors", 3);
	put_number(t, folder, "counters/link_downed", up ? 1 : 2);
	put_number(t, folder, "hw_counters/local_ack_timeout_err", 4);
	put_number(t, folder, "hw_counters/packet_seq_err", 6);
}

#define ETH "sys/class/net/eth0"
#define IB0 "sys/class/infiniband/mlx5_0/ports/1"

static void test_ethernet(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_interface(t, ETH, true, 1000);
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_of(t, SAMPLE_LINK, "eth0");
	assert_non_null(s);
	assert_true(s->link.up);
	assert_true(s->link.rate_gbps == 100);
	assert_int_equal(s->link.sent, 1000);
	assert_int_equal(s->link.received, 500);
	assert_int_equal(s->link.errors, 6);
	assert_int_equal(s->link.downs, 2);
	assert_true(isnan(t->out.metrics[METRIC_NET_SEND]));
	assert_int_equal(tree_sample(t, SAMPLE_NAME)->name.role, 'n');
	put_interface(t, ETH, true, 6000);
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(t->out.metrics[METRIC_NET_SEND] == 500);
	assert_true(t->out.metrics[METRIC_NET_RECEIVE] == 250);
	assert_null(tree_sample(t, SAMPLE_NAME)); /* once */
	put_interface(t, ETH, true, 50);          /* the driver was loaded again */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "eth0")->link.sent, 6050);
	put_interface(t, ETH, false, 50);
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_of(t, SAMPLE_LINK, "eth0");
	assert_false(s->link.up);
	assert_true(s->link.rate_gbps == 0);
	assert_int_equal(s->link.downs, 3);
	test_says(t->out.state, "1 port, 0 up");
}

static void test_downs_on_an_older_kernel(void **state)
{
	struct tree *t = *state;

	put_interface(t, ETH, true, 0);
	tree_remove(t, ETH "/carrier_down_count");
	tree_put(t, ETH "/carrier_changes", "4\n"); /* up, down, up, and once more: 2 downs */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "eth0")->link.downs, 2);
	put_interface(t, ETH, false, 0);
	tree_remove(t, ETH "/carrier_down_count");
	tree_put(t, ETH "/carrier_changes", "5\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "eth0")->link.downs, 3);
}

static void test_what_is_no_fault(void **state)
{
	struct tree *t = *state;

	put_interface(t, "sys/class/net/eth1", false, 0); /* no cable */
	put_interface(t, ETH, true, 0);
	tree_put(t, ETH "/flags", "0x1002\n"); /* switched off */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 0);
	put_interface(t, ETH, true, 0);
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(tree_of(t, SAMPLE_LINK, "eth0")->link.up);
	put_interface(t, ETH, false, 0);
	tree_put(t, ETH "/flags", "0x1002\n"); /* by somebody, who knows */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 0);
}

static void test_what_is_no_port(void **state)
{
	struct tree *t = *state;

	put_interface(t, "sys/class/net/docker0", true, 0);
	tree_remove(t, "sys/class/net/docker0/device");
	put_interface(t, "sys/class/net/eth0v3", true, 0);
	tree_folder(t, "sys/class/net/eth0v3/device/physfn"); /* a virtual function */
	put_port(t, "sys/class/infiniband/rxe0/ports/1", true, "InfiniBand\n");
	tree_remove(t, "sys/class/infiniband/rxe0/device");
	put_port(t, "sys/class/infiniband/mlx5_9/ports/1", true, "InfiniBand\n");
	tree_folder(t, "sys/class/infiniband/mlx5_9/device/physfn");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 0);
	test_says(t->out.state, "0 ports");
}

static void test_infiniband(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_port(t, IB0, true, "InfiniBand\n");
	put_interface(t, "sys/class/net/ib0", true, 123); /* IPoIB over it */
	tree_put(t, "sys/class/net/ib0/type", "32\n");
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_sample(t, SAMPLE_LINK);
	assert_ptr_equal(s, tree_of(t, SAMPLE_LINK, "mlx5_0:1"));
	assert_true(s->link.up);
	assert_true(s->link.rate_gbps == 400);
	assert_int_equal(s->link.sent, 4000);
	assert_int_equal(s->link.received, 8000);
	assert_int_equal(s->link.errors, 10);
	assert_int_equal(s->link.retries, 10);
	assert_int_equal(s->link.downs, 1);
	tree_put(t, IB0 "/hw_counters/packet_seq_err", "26\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(t->out.metrics[METRIC_NET_RETRY] == 2);
	put_port(t, IB0, false, "InfiniBand\n");
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_sample(t, SAMPLE_LINK);
	assert_false(s->link.up);
	assert_int_equal(s->link.downs, 2);
	tree_put(t, IB0 "/phys_state", "3: Disabled\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_null(tree_sample(t, SAMPLE_LINK));
}

/* The interface of a RoCE port is not a second port; what it counts belongs to the one. */
static void test_roce(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_port(t, IB0, true, "Ethernet\n");
	tree_put(t, IB0 "/gid_attrs/ndevs/0", "eth0\n");
	put_interface(t, ETH, true, 100);
	put_interface(t, "sys/class/net/eth1", true, 30);
	assert_int_equal(tree_read(t, 10), 0);
	assert_null(tree_of(t, SAMPLE_LINK, "eth0"));
	assert_int_equal(tree_of(t, SAMPLE_LINK, "eth1")->link.sent, 30);
	s = tree_of(t, SAMPLE_LINK, "mlx5_0:1");
	assert_int_equal(s->link.sent, 4100);
	assert_int_equal(s->link.errors, 16);
	assert_int_equal(s->link.downs, 1);
}

/* What a part of a port that goes had counted is neither forgotten nor counted again. */
static void test_a_part_that_goes(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_port(t, IB0, true, "Ethernet\n");
	tree_put(t, IB0 "/gid_attrs/ndevs/0", "eth0\n");
	put_interface(t, ETH, true, 1000);
	assert_int_equal(tree_read(t, 10), 0);
	tree_remove(t, ETH);
	tree_remove(t, IB0 "/counters/symbol_error");
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_of(t, SAMPLE_LINK, "mlx5_0:1");
	assert_int_equal(s->link.errors, 16);
	assert_int_equal(s->link.sent, 5000);
	assert_true(t->out.metrics[METRIC_NET_SEND] == 0);
	put_number(t, IB0, "counters/port_rcv_errors", 5);
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "mlx5_0:1")->link.errors, 18);
	put_interface(t, ETH, true, 1200); /* it is back */
	put_number(t, IB0, "counters/symbol_error", 8);
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_of(t, SAMPLE_LINK, "mlx5_0:1");
	assert_int_equal(s->link.errors, 19);
	assert_int_equal(s->link.sent, 5200);
	assert_true(t->out.metrics[METRIC_NET_SEND] == 20);
	/* One that was never read before had its errors before. */
	put_number(t, IB0, "counters/port_xmit_discards", 100);
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "mlx5_0:1")->link.errors, 19);
	put_number(t, IB0, "counters/port_xmit_discards", 101);
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_LINK, "mlx5_0:1")->link.errors, 20);
}

static void test_tcp_retransmissions(void **state)
{
	struct tree *t = *state;

	tree_put(t, "proc/net/snmp",
		 "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn InSegs RetransSegs InErrs\n"
		 "Tcp: 1 -1 100 50 0\nUdp: InDatagrams\nUdp: 3\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(isnan(t->out.metrics[METRIC_NET_RETRY]));
	tree_put(t, "proc/net/snmp",
		 "Tcp: RtoAlgorithm MaxConn InSegs RetransSegs InErrs\n"
		 "Tcp: 1 -1 100 80 0\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(t->out.metrics[METRIC_NET_RETRY] == 3);
	assert_true(isnan(t->out.metrics[METRIC_NET_SEND])); /* there is no port */
}

static bool sum_pauses(const char *const *names, uint64_t *ret)
{
	static char raw[16 * ETHTOOL_NAME_BYTES];
	uint64_t values[16];
	size_t n = 0;

	memset(raw, 0, sizeof(raw));
	for (; names[n]; n++) { /* a name of 32 bytes has no room for a NUL */
		memcpy(raw + n * ETHTOOL_NAME_BYTES, names[n],
		       strnlen(names[n], ETHTOOL_NAME_BYTES));
		values[n] = 1ull << n;
	}
	return ethtool_sum_pause(raw, values, n, ret);
}

static void test_pause_frames(void **state)
{
	static const char *const mlx5[] = {"rx_packets",
					   "rx_prio3_pause",
					   "rx_prio3_pause_duration",
					   "tx_prio3_pause",
					   "rx_prio3_pause_transition",
					   "rx_pause_ctrl_phy",
					   "tx_pause_storm_warning_events",
					   NULL};
	static const char *const plain[] = {"rx_bytes", "rx_pause_frames", "tx_pause", NULL};
	static const char *const none[] = {"rx_bytes", "prio3_0123456789_0123456789_pauspause",
					   NULL};
	uint64_t v = 0;

	(void)state;
	assert_true(sum_pauses(mlx5, &v));
	assert_int_equal(v, 2 + 8);
	assert_true(sum_pauses(plain, &v));
	assert_int_equal(v, 2 + 4);
	assert_false(sum_pauses(none, &v));
	assert_false(ethtool_pause_frames("no such interface", &v));
	assert_false(ethtool_pause_frames("an-interface-with-a-name-that-is-too-long", &v));
	assert_false(ethtool_pause_frames("lo", &v)); /* it has none */
}

/* The real ones, whatever their drivers are: a count does not go down between two looks. */
static void test_pause_frames_of_this_machine(void **state)
{
	struct if_nameindex *all = if_nameindex();

	(void)state;
	assert_non_null(all);
	for (struct if_nameindex *i = all; i->if_name; i++) {
		uint64_t before = 0, after = 0;

		if (ethtool_pause_frames(i->if_name, &before) &&
		    ethtool_pause_frames(i->if_name, &after))
			assert_true(after >= before);
	}
	if_freenameindex(all);
}

static void test_ill_treated(void **state)
{
	struct tree *t = *state;

	put_port(t, IB0, true, "InfiniBand\n");
	put_port(t, "sys/class/infiniband/mlx5_1/ports/1", true, "Ethernet\n");
	tree_put(t, "sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "eth0\n");
	put_interface(t, ETH, true, 100);
	put_interface(t, "sys/class/net/eth1", true, 100);
	tree_put(t, "proc/net/snmp", "Tcp: A RetransSegs\nTcp: 1 2\n");
	tree_ill_treat(t);
}

static void test_more_ports_than_anybody_has(void **state)
{
	struct tree *t = *state;
	char path[100];

	for (int i = 0; i < COLLECT_DEVICES_MAX + 20; i++) {
		snprintf(path, sizeof(path), "sys/class/net/e%d", i);
		put_interface(t, path, true, 1);
	}
	for (int i = 0; i < 3; i++) {
		assert_int_equal(tree_read(t, 10), 0);
		assert_true(t->out.n <= COLLECT_SAMPLES_MAX);
	}
	snprintf(path, sizeof(path), "sys/class/net/%070d", 1); /* a name that nobody can have */
	put_interface(t, path, true, 1);
	assert_int_equal(tree_read(t, 10), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_ethernet),         T(test_downs_on_an_older_kernel),
		T(test_what_is_no_fault), T(test_what_is_no_port),
		T(test_infiniband),       T(test_roce),
		T(test_a_part_that_goes), T(test_tcp_retransmissions),
		T(test_pause_frames),     T(test_pause_frames_of_this_machine),
		T(test_ill_treated),      T(test_more_ports_than_anybody_has),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
