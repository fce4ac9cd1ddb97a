/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The delay matrix over a simulated fabric: slow senders, receivers, links and ways are found and
 * told apart, bursts at a receiver and a fabric that is slow as a whole are not told.
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "detect/paths.h"
#include "detect/test_fixture.h"

#define NODES_MAX 100
#define NS        UINT64_C(1000000000)

struct world {
	struct rng_seeded rng;
	struct paths paths;
	struct path_node nodes[NODES_MAX], *all[NODES_MAX];
	double send[NODES_MAX], receive[NODES_MAX]; /* times as long */
	uint32_t slow_from, slow_to;
	double fabric;
	uint64_t burst_until_ns[NODES_MAX];
	unsigned n;
	bool random_pairs, bursts;
	uint64_t now_ns;
	/* What was told. */
	bool said_send[NODES_MAX], said_receive[NODES_MAX];
	unsigned n_pairs, n_over;
	uint32_t pair_from, pair_to;
};

static void begin(struct world *w, uint64_t seed, unsigned n)
{
	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	w->n = n;
	w->fabric = 1;
	w->now_ns = 1000 * NS;
	w->slow_from = w->slow_to = UINT32_MAX;
	paths_init(&w->paths, NODES_MAX);
	for (unsigned i = 0; i < n; i++) {
		w->all[i] = &w->nodes[i];
		w->send[i] = w->receive[i] = 1;
	}
}

static void on_path(void *arg, const struct path_finding *f)
{
	struct world *w = arg;

	w->n_over += f->over;
	if (f->over)
		return;
	if (f->fault == PATH_SENDER) {
		w->said_send[f->from] = true;
	} else if (f->fault == PATH_RECEIVER) {
		w->said_receive[f->to] = true;
	} else {
		w->n_pairs++;
		w->pair_from = f->from;
		w->pair_to = f->to;
	}
}

static void transfer(struct world *w, unsigned from, unsigned to)
{
	uint64_t bytes =
		(UINT64_C(1) << (16 + rng_below(&w->rng.rng, 8))) + rng_below(&w->rng.rng, 100000);
	double ns = 20000 + (double)bytes / 20; /* latency, 20 GB/s */

	ns *= exp(0.12 * normal(&w->rng)) * w->fabric;
	ns *= fmax(w->send[from], w->receive[to]);
	if (from == w->slow_from && to == w->slow_to)
		ns *= 2;
	if (w->now_ns < w->burst_until_ns[to] || rng_below(&w->rng.rng, 30) == 0)
		ns *= 1 + 4 * uniform(&w->rng);
	assert_int_equal(paths_add(&w->paths, &w->nodes[from], &w->nodes[to], from, to, bytes,
				   (uint64_t)ns, w->now_ns),
			 0);
}

/* For so long every node measures one peer each 10 s: of its three neighbours, or any. */
static void run(struct world *w, unsigned seconds)
{
	for (unsigned t = 0; t < seconds; t += 10) {
		w->now_ns += 10 * NS;
		for (unsigned i = 0; i < w->n; i++) {
			unsigned away = w->random_pairs ? (unsigned)rng_below(&w->rng.rng, w->n - 1)
							: (t / 10 + i) % 3;

			if (w->bursts && rng_below(&w->rng.rng, 200) == 0)
				w->burst_until_ns[i] = w->now_ns + 40 * NS;
			transfer(w, i, (i + 1 + away) % w->n);
		}
		paths_judge(&w->paths, w->all, w->now_ns, on_path, w);
	}
}

static unsigned said(const struct world *w)
{
	unsigned n = w->n_pairs;

	for (unsigned i = 0; i < w->n; i++)
		n += w->said_send[i] + w->said_receive[i];
	return n;
}

static void test_told_apart(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(31);
	unsigned found = 0, wrong = 0, rounds = 160;

	(void)state;
	for (unsigned round = 0; round < rounds; round++) {
		unsigned who, kind = round % 4, right;

		begin(&w, seed + round, round % 8 < 4 ? 8 : 100);
		w.bursts = true;
		w.random_pairs = round % 16 >= 8 && kind != 3;
		run(&w, 1200);
		who = (unsigned)rng_below(&w.rng.rng, w.n);
		assert_int_equal(said(&w), 0);
		if (kind == 0 || kind == 2)
			w.send[who] = 2;
		if (kind == 1 || kind == 2)
			w.receive[who] = 2;
		if (kind == 3) {
			w.slow_from = who;
			w.slow_to = (who + 2) % w.n;
		}
		run(&w, kind == 3 ? 400 : 300);
		if (kind == 3)
			right = w.n_pairs && w.pair_from == who && w.pair_to == (who + 2) % w.n;
		else
			right = (kind == 1 || w.said_send[who]) &&
				(kind == 0 || w.said_receive[who]);
		found += right;
		for (unsigned i = 0; i < w.n; i++)
			wrong += (w.said_send[i] && (i != who || kind % 2)) +
				 (w.said_receive[i] && (i != who || kind == 0 || kind == 3));
		wrong += kind != 3 && w.n_pairs;
		w.send[who] = w.receive[who] = 1;
		w.slow_from = UINT32_MAX;
		run(&w, 900);
		assert_true(!right || w.n_over >= 1);
		paths_fini(&w.paths);
	}
	print_message("%u of %u found, %u wrong\n", found, rounds, wrong);
	assert_true(found * 100 >= rounds * 90);
	assert_true(wrong * 100 <= rounds * 3);
}

static void test_quiet(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(32);
	unsigned alarms = 0;

	(void)state;
	for (unsigned round = 0; round < 6; round++) {
		begin(&w, seed + round, round % 2 ? 100 : 4);
		w.bursts = true;
		w.random_pairs = round >= 3;
		run(&w, 20000);
		w.fabric = 2.5; /* everybody, at once */
		run(&w, 4000);
		w.fabric = 1;
		run(&w, 4000);
		alarms += said(&w);
		paths_fini(&w.paths);
	}
	assert_int_equal(alarms, 0);
}

static void test_bounded(void **state)
{
	static struct world w;

	(void)state;
	begin(&w, test_seed(33), 100);
	w.random_pairs = true;
	run(&w, 12000);
	/* Of 9900 cells those of the last ten minutes, and what is not yet swept. */
	assert_true(w.paths.n_cells <= 9900 && w.paths.cap_cells <= 16384);
	for (uint32_t i = 0; i < w.paths.n_cells; i++)
		assert_int_equal(keys_find(&w.paths.index,
					   key_pair(w.paths.cells[i].from, w.paths.cells[i].to)),
				 i);
	assert_int_equal(w.paths.index.n, w.paths.n_cells);
	paths_fini(&w.paths);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_told_apart),
		cmocka_unit_test(test_quiet),
		cmocka_unit_test(test_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
