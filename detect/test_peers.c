/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules about peers, end to end: samples of a simulated job go into a detector, and what it
 * says names the rank, node, port, path or disk that was made slow, once, and takes it back.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/options.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"

#define NODES    12
#define PER_NODE 4
#define RANKS    (NODES * PER_NODE)
#define STEP_S   10
#define PORT     8
#define DISK     9

struct world {
	struct rng_seeded rng;
	struct detector *d;
	uint64_t now_ns, step, sent[NODES];
	bool marks_waiting, no_disks;
	uint32_t stages; /* of neighbouring ranks; 0: two, in turn */
	double work[RANKS], clock[NODES], cpu[NODES], send[NODES], way[NODES][NODES], disk[NODES];
	double power[NODES], pause_s;
	struct told told;
};

static void tell(struct world *w, struct sample *s)
{
	s->time_ns = w->now_ns;
	feed(w->d, s);
}

static struct sample of_node(enum sample_kind kind, uint32_t node, uint32_t device)
{
	struct sample s = sample_of(kind, 0, node, SAMPLE_NONE, SAMPLE_NONE);

	s.device = device;
	return s;
}

static struct sample of_rank(enum sample_kind kind, uint32_t rank)
{
	return sample_of(kind, 0, rank / PER_NODE, 1, rank);
}

static void join(struct world *w, uint64_t epoch)
{
	struct sample s = of_node(SAMPLE_JOB, SAMPLE_NONE, SAMPLE_NONE);

	s.job = 1;
	s.run.begins = true;
	s.run.world = RANKS;
	s.run.epoch = epoch;
	tell(w, &s);
	for (uint32_t i = 0; i < RANKS; i++) {
		s = of_rank(SAMPLE_MEMBER, i);
		snprintf(s.member.role, sizeof(s.member.role), "stage%u",
			 w->stages ? i * w->stages / RANKS : i % 2);
		tell(w, &s);
	}
}

static void begin(struct world *w, uint64_t seed, bool marks_waiting)
{
	struct detector_options o;
	struct sample s;

	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	detector_options_default(&o);
	o.nodes_max = 64;
	o.ranks_max = 256;
	w->d = told_detector(&w->told, &o, NULL);
	w->now_ns = 100 * NS_PER_SEC;
	w->marks_waiting = marks_waiting;
	for (unsigned i = 0; i < RANKS; i++)
		w->work[i] = i % 2 ? 8 : 6; /* by stage */
	for (unsigned i = 0; i < NODES; i++) {
		w->clock[i] = w->send[i] = w->disk[i] = w->power[i] = 1;
		for (unsigned k = 0; k < NODES; k++)
			w->way[i][k] = 1;
		s = of_node(SAMPLE_NAME, i, SAMPLE_NONE);
		snprintf(s.name.text, sizeof(s.name.text), "n%u", i);
		tell(w, &s);
	}
	join(w, 1);
}

static void tell_metrics(struct world *w, uint32_t node)
{
	struct sample s = of_node(SAMPLE_METRICS, node, SAMPLE_NONE);

	for (int m = 0; m < METRIC_COUNT; m++)
		s.metrics[m] = NAN;
	s.metrics[METRIC_CPU] = (float)(w->cpu[node] + 0.2 * exp(0.1 * normal(&w->rng)));
	s.metrics[METRIC_GPU_CLOCK] = (float)(1700 * w->clock[node] * exp(0.004 * normal(&w->rng)));
	s.metrics[METRIC_GPU_POWER] = (float)(600 * w->power[node] * exp(0.03 * normal(&w->rng)));
	s.metrics[METRIC_NET_SEND] = (float)(1e10 * exp(0.05 * normal(&w->rng)));
	tell(w, &s);
}

static void tell_devices(struct world *w, uint32_t node)
{
	uint32_t peer = (node + 1 + (uint32_t)rng_below(&w->rng.rng, NODES - 1)) % NODES;
	struct sample s = of_node(SAMPLE_LINK, node, PORT);

	w->sent[node] += (uint64_t)(1e11 * exp(0.05 * normal(&w->rng)));
	s.link.up = true;
	s.link.sent = w->sent[node];
	tell(w, &s);
	s = of_node(SAMPLE_PAIR, node, SAMPLE_NONE);
	s.pair.peer = w->step % 2 ? (node + 1) % NODES : peer;
	s.pair.bytes = 1 << 24;
	s.pair.ns = (uint64_t)(1e6 * w->send[node] * w->way[node][s.pair.peer] *
			       exp(0.1 * normal(&w->rng)));
	tell(w, &s);
	if (w->no_disks)
		return;
	s = of_node(SAMPLE_DISK, node, DISK);
	s.disk.ops = 100 + rng_below(&w->rng.rng, 1000);
	s.disk.bytes = s.disk.ops << 16;
	s.disk.busy_ns =
		(uint64_t)(1e5 * (double)s.disk.ops * w->disk[node] * exp(0.2 * normal(&w->rng)));
	tell(w, &s);
}

/* All ranks wait for the slowest; every 10 s each node tells of itself. */
static void steps(struct world *w, unsigned n)
{
	while (n-- > 0) {
		double work[RANKS], longest = 0;

		for (uint32_t i = 0; i < RANKS; i++) {
			work[i] = w->work[i] / w->clock[i / PER_NODE] * exp(0.02 * normal(&w->rng));
			longest = fmax(longest, work[i]);
		}
		w->now_ns += (uint64_t)((longest + 2 + w->pause_s) * 1e9);
		w->pause_s = 0;
		w->step++;
		for (uint32_t i = 0; i < NODES; i++) {
			tell_metrics(w, i);
			tell_devices(w, i);
		}
		for (uint32_t i = 0; i < RANKS; i++) {
			struct sample s = of_rank(SAMPLE_BEAT, i);

			s.beat.step = w->step;
			s.beat.flags = w->marks_waiting ? BEAT_BUSY : 0;
			s.beat.busy_ns = w->marks_waiting ? (uint64_t)(1e9 * work[i]) : 0;
			tell(w, &s);
		}
	}
}

static bool says(const struct world *w, const char *text)
{
	return strstr(w->told.alarm.words, text) != NULL;
}

static void count_line(void *arg, const char *text)
{
	unsigned *n = arg;

	*n += strlen(text) > 0;
}

static void test_a_rank(void **state)
{
	static struct world w;
	struct subject s;
	unsigned lines = 0;

	(void)state;
	begin(&w, test_seed(51), true);
	steps(&w, 100);
	assert_int_equal(w.told.raised, 0);
	w.work[17] *= 1.2;
	steps(&w, 20);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.subject.kind, SUBJECT_RANK);
	assert_int_equal(w.told.alarm.subject.rank, 17);
	assert_int_equal(w.told.alarm.class, CLASS_SLOW);
	assert_int_equal(w.told.alarm.cause, CAUSE_STRAGGLER);
	assert_true(w.told.alarm.n_evidence >= 3 && w.told.alarm.since_ns < w.told.alarm.raised_ns);
	assert_true(says(&w, "rank 17 of job 1 on node n4 holds others up"));
	s = subject_rank(1, 17, 4);
	detector_explain(w.d, &s, count_line, &lines);
	assert_true(lines >= 2);
	w.work[17] /= 1.2;
	steps(&w, 60);
	assert_int_equal(w.told.cleared, w.told.raised);
	detector_free(w.d);
}

static void test_all_of_a_node_and_a_new_run(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(52), true);
	steps(&w, 100);
	for (unsigned i = 0; i < PER_NODE; i++)
		w.work[5 * PER_NODE + i] *= 1.3;
	steps(&w, 24);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.subject.kind, SUBJECT_NODE);
	assert_int_equal(w.told.alarm.subject.node, 5);
	assert_int_equal(w.told.alarm.cause, CAUSE_STRAGGLER);
	for (unsigned i = 0; i < PER_NODE; i++)
		w.work[5 * PER_NODE + i] /= 1.3;
	w.step = 20; /* goes on from an older checkpoint */
	join(&w, 2);
	steps(&w, 60);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.cleared, w.told.raised);
	detector_free(w.d);
}

/* Stages of five or six ranks on nodes of four: each node has ranks of two, and some of one of them
 * have no like elsewhere. One subject for what is slow: the node. */
static void test_node_with_stages_of_its_own(void **state)
{
	static struct world w;

	(void)state;
	for (uint32_t node = 0; node < NODES; node++) {
		begin(&w, test_seed(61) + node, true);
		w.stages = node % 2 ? 9 : NODES; /* or each node its own */
		for (unsigned i = 0; i < RANKS; i++)
			w.work[i] = 6 + i * w.stages / RANKS % 3;
		join(&w, 2);
		steps(&w, 100);
		assert_int_equal(w.told.raised, 0);
		for (unsigned i = 0; i < PER_NODE; i++)
			w.work[node * PER_NODE + i] *= 1.3;
		steps(&w, 28);
		assert_int_equal(w.told.alarms, 1);
		assert_int_equal(w.told.alarm.subject.kind, SUBJECT_NODE);
		assert_int_equal(w.told.alarm.subject.node, node);
		detector_free(w.d);
	}
}

static void test_moved_elsewhere(void **state)
{
	static struct world w;
	struct sample s;

	(void)state;
	begin(&w, test_seed(53), true);
	steps(&w, 60);
	w.work[9] *= 1.5;
	steps(&w, 20);
	assert_int_equal(w.told.alarms, 1);
	s = of_rank(SAMPLE_MEMBER, 9);
	s.node = 40;
	tell(&w, &s);
	assert_int_equal(w.told.cleared, w.told.raised);
	detector_free(w.d);
}

/* Step times are all alike: only what the nodes measure can tell. */
static void test_waiting_is_not_marked(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(54), false);
	steps(&w, 200);
	assert_int_equal(w.told.raised, 0);
	w.clock[3] = 0.85;
	steps(&w, 60);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.subject.kind, SUBJECT_NODE);
	assert_int_equal(w.told.alarm.subject.node, 3);
	assert_int_equal(w.told.alarm.cause, CAUSE_ODD_ONE_OUT);
	assert_true(says(&w, "gpu_clock"));
	w.clock[3] = 1;
	steps(&w, 60);
	assert_int_equal(w.told.cleared, w.told.raised);
	detector_free(w.d);
}

/* Odd, and nobody suffers: a note; the job becomes slower: an alarm. */
static void test_odd_without_harm(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(55), false);
	steps(&w, 200);
	w.cpu[7] = 0.5;
	steps(&w, 40);
	assert_int_equal(w.told.alarms, 0);
	assert_int_equal(w.told.raised, 1);
	for (unsigned i = 0; i < PER_NODE; i++)
		w.work[7 * PER_NODE + i] *= 1.3;
	steps(&w, 30);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.subject.node, 7);
	assert_true(says(&w, "its job has become slower"));
	detector_free(w.d);
}

/* One rank is slow: its node's power is not odd, but it alone did not fall when steps took longer.
 */
static void test_who_did_not_rest(void **state)
{
	static struct world w;

	(void)state;
	for (int all = 0; all < 2; all++) {
		begin(&w, test_seed(58), false);
		steps(&w, 200);
		for (unsigned i = 0; i < RANKS; i++)
			w.work[i] *= all || i == 4 * PER_NODE + 1 ? 1.4 : 1;
		for (unsigned i = 0; i < NODES; i++)
			w.power[i] = i == 4 && !all ? 0.92 : 0.85;
		steps(&w, 4);
		w.pause_s = 500; /* a checkpoint that nobody declares does not hide when it began */
		steps(&w, 66);
		assert_int_equal(w.told.alarms, !all);
		if (!all) {
			assert_int_equal(w.told.alarm.subject.kind, SUBJECT_NODE);
			assert_int_equal(w.told.alarm.subject.node, 4);
			assert_true(says(&w, "has changed otherwise than the other nodes"));
			w.work[4 * PER_NODE + 1] /= 1.4;
			for (unsigned i = 0; i < NODES; i++)
				w.power[i] = 1;
			steps(&w, 40);
			assert_int_equal(w.told.cleared, w.told.raised);
		}
		steps(&w, 300); /* the new pace */
		assert_int_equal(w.told.alarms, !all);
		detector_free(w.d);
	}
}

/* A new run after steps had become longer: what its nodes do then is not compared with before. */
static void test_slow_before_a_new_run(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(60), false);
	steps(&w, 200);
	for (unsigned i = 0; i < RANKS; i++)
		w.work[i] *= 1.4;
	steps(&w, 16);
	join(&w, 2);
	w.power[7] = 0.9;
	steps(&w, 60);
	assert_int_equal(w.told.alarms, 0);
	detector_free(w.d);
}

/* All ranks are slowed alike, as by longer sequences: a note about the job. */
static void test_all_of_a_job(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(59), true);
	steps(&w, 200);
	assert_int_equal(w.told.raised, 0);
	for (unsigned i = 0; i < RANKS; i++)
		w.work[i] *= 1.4;
	steps(&w, 40);
	assert_int_equal(w.told.alarms, 0);
	assert_int_equal(w.told.raised, 1);
	for (unsigned i = 0; i < RANKS; i++)
		w.work[i] /= 1.4;
	steps(&w, 60);
	assert_int_equal(w.told.raised, 1);
	assert_int_equal(w.told.cleared, 1);
	/* Slow again, and a new run as fast as ever: nothing is carried over. */
	for (unsigned i = 0; i < RANKS; i++)
		w.work[i] *= 1.4;
	steps(&w, 40);
	assert_int_equal(w.told.raised, 2);
	join(&w, 2);
	assert_int_equal(w.told.cleared, 2);
	for (unsigned i = 0; i < RANKS; i++)
		w.work[i] /= 1.4;
	steps(&w, 60);
	assert_int_equal(w.told.raised, 2);
	detector_free(w.d);
}

static void test_ports_ways_and_disks(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(56), true);
	steps(&w, 300);
	assert_int_equal(w.told.raised, 0);
	w.send[2] = 2;
	steps(&w, 40);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.cause, CAUSE_PATH_SLOW);
	assert_int_equal(w.told.alarm.subject.kind, SUBJECT_LINK);
	assert_int_equal(w.told.alarm.subject.node, 2);
	assert_int_equal(w.told.alarm.subject.device, PORT);
	assert_true(says(&w, "transfers from it take"));
	w.send[2] = 1;
	steps(&w, 400);
	assert_int_equal(w.told.cleared, w.told.raised);
	w.way[6][7] = 2;
	steps(&w, 60);
	assert_int_equal(w.told.alarms, 2);
	assert_int_equal(w.told.alarm.subject.peer, 7);
	assert_true(says(&w, "the path from node n6 to node n7 is slow"));
	w.way[6][7] = 1;
	steps(&w, 60);
	assert_int_equal(w.told.cleared, w.told.raised);
	w.disk[4] = 4;
	steps(&w, 200);
	assert_int_equal(w.told.alarms, 3);
	assert_int_equal(w.told.alarm.subject.kind, SUBJECT_DISK);
	assert_int_equal(w.told.alarm.subject.node, 4);
	assert_int_equal(w.told.alarm.cause, CAUSE_DEGRADED);
	w.disk[4] = 1;
	steps(&w, 300);
	assert_int_equal(w.told.cleared, w.told.raised);
	detector_free(w.d);
}

/* A slow disk is taken out, and a job ends that told of its transfers. */
static void test_what_is_gone_is_slow_no_more(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(57), true);
	steps(&w, 300);
	w.disk[4] = 4;
	steps(&w, 200);
	assert_int_equal(w.told.alarms, 1);
	assert_int_equal(w.told.alarm.cause, CAUSE_DEGRADED);
	w.no_disks = true;
	steps(&w, 300); /* of 10 s and more */
	assert_int_equal(w.told.cleared, 0);
	steps(&w, 80);
	assert_int_equal(w.told.cleared, 1);
	w.no_disks = false;
	steps(&w, 200);
	assert_int_equal(w.told.alarms, 2);
	detector_free(w.d);
}

static void test_somebody_says_that_it_is_well(void **state)
{
	static struct world w;
	struct subject s;

	(void)state;
	begin(&w, test_seed(57), true);
	steps(&w, 60);
	w.work[30] *= 1.4;
	steps(&w, 20);
	assert_int_equal(w.told.alarms, 1);
	s = subject_node(7);
	assert_int_equal(detector_clear(w.d, &s, w.now_ns), 1);
	w.work[30] /= 1.4;
	steps(&w, 40);
	assert_int_equal(w.told.alarms, 1);
	w.work[30] *= 1.4; /* the next time */
	steps(&w, 20);
	assert_int_equal(w.told.alarms, 2);
	detector_free(w.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_rank),
		cmocka_unit_test(test_all_of_a_node_and_a_new_run),
		cmocka_unit_test(test_node_with_stages_of_its_own),
		cmocka_unit_test(test_moved_elsewhere),
		cmocka_unit_test(test_waiting_is_not_marked),
		cmocka_unit_test(test_odd_without_harm),
		cmocka_unit_test(test_who_did_not_rest),
		cmocka_unit_test(test_slow_before_a_new_run),
		cmocka_unit_test(test_all_of_a_job),
		cmocka_unit_test(test_ports_ways_and_disks),
		cmocka_unit_test(test_what_is_gone_is_slow_no_more),
		cmocka_unit_test(test_somebody_says_that_it_is_well),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
