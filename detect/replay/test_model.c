/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of traces: one seed gives one trace whatever a detector asks, time goes forward, every
 * kind of fault and of sample comes, and what is told can be true: nobody beats who has ended.
 */
#include <config.h>

#include <string.h>

#include "base/alloc.h"
#include "detect/replay/model.h"
#include "detect/replay/rand.h"
#include "tests/lib/test.h"

#define NODES 6u
#define RANKS (NODES * RANKS_PER_NODE)

static struct world_config config(uint64_t seed, bool declares)
{
	return (struct world_config){.seed = seed,
				     .node_base = 10,
				     .nodes = NODES,
				     .spares = 2,
				     .days = 7,
				     .fault_every_s = 3.1 * 3600,
				     .declares = declares};
}

static uint64_t hash(uint64_t h, const void *p, size_t len)
{
	const uint8_t *b = p;

	while (len--)
		h = (h ^ *b++) * UINT64_C(0x100000001b3);
	return h;
}

/* Of all lines but those of activity. */
static uint64_t trace_hash(struct world_config c, bool ask, uint64_t *ret_answers)
{
	struct world *w = NULL;
	const struct trace_record *r;
	char line[TRACE_LINE_MAX];
	uint64_t h = 1, n = 0;

	*ret_answers = 0;
	assert_int_equal(world_new(&c, &w), 0);
	while (world_next(w, &r)) {
		if (!r->is_label && r->sample.kind == SAMPLE_ACTIVITY) {
			++*ret_answers;
			continue;
		}
		h = hash(h, line, trace_format(r, line));
		if (ask && ++n % 5000 == 0)
			world_probe(w, (uint32_t)(n / 5000 % RANKS), n / 5000 % 3 != 0);
	}
	world_free(w);
	return h;
}

static void test_one_seed_one_trace(void **state)
{
	struct world_config c = config(1, true);
	uint64_t few, many, once;

	(void)state;
	c.days = 0.7;
	once = trace_hash(c, false, &few);
	assert_true(trace_hash(c, false, &many) == once);
	assert_true(few == many);
	assert_true(trace_hash(c, true, &many) == once);
	assert_true(many > few + 100);
	c.seed++;
	assert_true(trace_hash(c, false, &many) != once);
}

/* What must hold of one world. */
struct watch {
	uint64_t last_ns, n[SAMPLE_KIND_COUNT], faults;
	bool up[RANKS], seen_fault[FAULT_COUNT];
	uint64_t step[RANKS];
	uint32_t node[RANKS];
};

static void watch_label(struct watch *v, const struct label *l)
{
	static const char *const whats[] = {
#define X(name, group, what, weight) what,
		FAULTS(X)
#undef X
	};

	if (l->kind != LABEL_FAULT)
		return;
	v->faults++;
	assert_true(l->until_ns > l->time_ns && l->classes);
	assert_string_not_equal(fault_group(l->what), "?");
	for (unsigned i = 0; i < FAULT_COUNT; i++)
		if (strcmp(whats[i], l->what) == 0)
			v->seen_fault[i] = true;
	if (l->subject.kind == SUBJECT_RANK)
		assert_int_equal(l->subject.node, v->node[l->subject.rank]);
}

static void watch_sample(struct watch *v, const struct sample *s)
{
	v->n[s->kind]++;
	assert_true(s->node == SAMPLE_NONE || (s->node >= 10 && s->node < 10 + NODES + 2));
	switch ((unsigned)s->kind) {
	case SAMPLE_MEMBER:
		v->up[s->rank] = !s->member.leaves;
		v->step[s->rank] = 0;
		v->node[s->rank] = s->node;
		break;
	case SAMPLE_EXIT:
		assert_true(v->up[s->rank]);
		v->up[s->rank] = false;
		break;
	case SAMPLE_BEAT:
		assert_true(v->up[s->rank] && s->node == v->node[s->rank]);
		if (v->step[s->rank]) /* that none is lost without being told of */
			assert_int_equal(s->beat.step, v->step[s->rank] + 1 + s->beat.missed);
		v->step[s->rank] = s->beat.step;
		break;
	case SAMPLE_ACTIVITY:
		assert_true(v->up[s->rank]);
		break;
	default:
		break;
	}
}

static void watch_world(struct watch *v, uint64_t seed, bool declares)
{
	struct world_config c = config(seed, declares);
	const struct trace_record *r;
	struct world *w = NULL;

	v->last_ns = 0;
	memset(v->up, 0, sizeof(v->up));
	assert_int_equal(world_new(&c, &w), 0);
	while (world_next(w, &r)) {
		assert_true(trace_time(r) >= v->last_ns);
		v->last_ns = trace_time(r);
		if (r->is_label)
			watch_label(v, &r->label);
		else
			watch_sample(v, &r->sample);
	}
	world_free(w);
	assert_true(v->last_ns > (uint64_t)(6.99 * 86400e9));
}

static void test_everything_comes(void **state)
{
	struct watch v = {0};

	(void)state;
	watch_world(&v, 2, true);
	watch_world(&v, 3, false);
	watch_world(&v, 4, true);
	for (unsigned i = 0; i < FAULT_COUNT; i++)
		assert_true(v.seen_fault[i]);
	/* Mean 3.1 hours and a little between: about 49 in a week. */
	assert_in_range(v.faults, 3 * 38, 3 * 60);
	for (unsigned i = 0; i < SAMPLE_KIND_COUNT; i++)
		if (i != SAMPLE_STALE && i != SAMPLE_CHECK)
			assert_true(v.n[i] > 0);
	/* Steps of 5 to 30 s. */
	assert_in_range(v.n[SAMPLE_BEAT], 3 * RANKS * 10000, 3 * RANKS * 130000);
}

static void test_quiet_cases(void **state)
{
	struct quiet_case cases[QUIET_CASES_MAX];
	unsigned n = quiet_cases(cases);

	(void)state;
	assert_int_equal(n, 26);
	for (unsigned i = 0; i < n; i++) {
		struct world_config c = cases[i].config;
		const struct trace_record *r;
		uint64_t last = 0, beats = 0, gaps = 0;
		struct world *w = NULL;

		c.style = &cases[i].style;
		c.days = 0.3;
		assert_int_equal(world_new(&c, &w), 0);
		while (world_next(w, &r)) {
			assert_true(trace_time(r) >= last);
			gaps += trace_time(r) > last + UINT64_C(3000000000000);
			last = trace_time(r);
			assert_true(!r->is_label || r->label.kind == LABEL_MODE ||
				    r->label.kind == LABEL_GAP);
			beats += !r->is_label && r->sample.kind == SAMPLE_BEAT;
		}
		world_free(w);
		if (cases[i].style.mute)
			assert_int_equal(beats, 0);
		else
			assert_true(beats > 1000);
		assert_int_equal(gaps, strcmp(cases[i].name, "gap") == 0);
	}
}

static void test_no_memory(void **state)
{
	struct world_config c = config(1, true);

	(void)state;
	for (uint64_t n = 1;; n++) {
		const struct trace_record *r;
		struct world *w = NULL;

		alloc_fail_at(n, true);
		if (world_new(&c, &w) == 0) {
			for (unsigned i = 0; i < 1000 && world_next(w, &r); i++)
				;
			world_free(w);
		}
		if (!alloc_fired()) {
			alloc_fail_at(0, false);
			assert_true(n > 8);
			return;
		}
	}
}

static void test_clusters(void **state)
{
	static struct world_config worlds[JOBS_MAX];

	(void)state;
	for (uint32_t nodes = 1; nodes <= 1000; nodes += nodes < 30 ? 1 : 97) {
		unsigned n = cluster_worlds(1000, nodes, 7, 0, worlds);
		uint32_t sum = 0;

		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(worlds[i].node_base, sum);
			assert_true(worlds[i].nodes > 0);
			sum += worlds[i].nodes + worlds[i].spares;
		}
		assert_int_equal(sum, nodes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_seed_one_trace), cmocka_unit_test(test_everything_comes),
		cmocka_unit_test(test_quiet_cases),        cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_clusters),
	};

	rand_init();
	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
