/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_pair.c - measuring one pair, and naming the bad node out of many pairs.
 *
 * Between the two: 64 round trips of 8 bytes; then blocks of 256 KiB with their digest for so many
 * seconds there, an empty one, the receiver's count; then the same back.
 */
#include <config.h>

#include "tools/check_pair.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/digest.h"
#include "tools/check_socket.h"
#include "tools/node_check.h"

enum { TRIPS = 64, BLOCK = 256 << 10, HEAD = 24 /* length, digest */ };

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int round_trips(int fd, bool first, double deadline, double *ret)
{
	double took[TRIPS];
	uint8_t word[8] = {0};

	for (int i = 0; i < TRIPS; i++) {
		double start = check_now();
		int r = first ? check_send(fd, word, sizeof(word), deadline) : 0;

		if (r == 0)
			r = check_receive(fd, word, sizeof(word), deadline);
		if (r == 0 && !first)
			r = check_send(fd, word, sizeof(word), deadline);
		if (r < 0)
			return r;
		took[i] = check_now() - start;
	}
	qsort(took, TRIPS, sizeof(took[0]), by_value);
	*ret = took[TRIPS / 2];
	return 0;
}

static int send_blocks(int fd, uint8_t *block, double seconds, double deadline, double *ret_rate)
{
	double until = check_now() + seconds;
	uint8_t head[HEAD], answer[8];
	struct digest d;
	int r;

	for (uint32_t i = 0; i < BLOCK; i++)
		block[i] = (uint8_t)(i * 2654435761u >> 24);
	d = digest_of(block, BLOCK);
	put_le64(head, BLOCK);
	memcpy(head + 8, d.b, 16);
	do {
		r = check_send(fd, head, HEAD, deadline);
		if (r == 0)
			r = check_send(fd, block, BLOCK, deadline);
		if (r < 0)
			return r;
	} while (check_now() < until);
	memset(head, 0, HEAD);
	r = check_send(fd, head, HEAD, deadline);
	if (r == 0)
		r = check_receive(fd, answer, sizeof(answer), deadline);
	if (r == 0)
		*ret_rate = (double)get_le64(answer);
	return r;
}

/* The receiver says how fast it was, from the first block's beginning to the last one's end. */
static int receive_blocks(int fd, uint8_t *block, double deadline, double *ret_rate)
{
	uint8_t head[HEAD], answer[8];
	double start = 0, bytes = 0, last = 0;
	int r;

	for (;;) {
		struct digest d;

		r = check_receive(fd, head, HEAD, deadline);
		if (r < 0)
			return r;
		if (get_le64(head) == 0)
			break;
		if (get_le64(head) != BLOCK)
			return -EPROTO;
		start = start > 0 ? start : check_now();
		r = check_receive(fd, block, BLOCK, deadline);
		if (r < 0)
			return r;
		d = digest_of(block, BLOCK);
		if (memcmp(d.b, head + 8, 16) != 0)
			return CKPT_ECORRUPT;
		bytes += BLOCK;
		last = check_now();
	}
	*ret_rate = last > start ? bytes / (last - start) : 0;
	put_le64(answer, (uint64_t)*ret_rate);
	return check_send(fd, answer, sizeof(answer), deadline);
}

int pair_measure(int fd, bool first, double seconds, double deadline, struct pair_rates *ret)
{
	CLEANUP_FREE uint8_t *block = alloc_zero(BLOCK);
	struct pair_rates p = {0};
	int r = block ? round_trips(fd, first, deadline, &p.round_trip) : -ENOMEM;

	if (r == 0 && first)
		r = send_blocks(fd, block, seconds, deadline, &p.there);
	else if (r == 0)
		r = receive_blocks(fd, block, deadline, &p.there);
	if (r == 0 && first)
		r = receive_blocks(fd, block, deadline, &p.back);
	else if (r == 0)
		r = send_blocks(fd, block, seconds, deadline, &p.back);
	if (r == 0)
		*ret = p;
	return r;
}

/* ---- Who meets whom ---- */

static bool met(const struct pair *before, size_t n, uint32_t a, uint32_t b)
{
	for (size_t i = 0; i < n; i++)
		if ((before[i].a == a && before[i].b == b) ||
		    (before[i].a == b && before[i].b == a))
			return true;
	return false;
}

static void add(struct pair *ret, size_t *n, bool *taken, uint32_t a, uint32_t b)
{
	ret[(*n)++] = (struct pair){.a = a < b ? a : b, .b = a < b ? b : a};
	taken[a] = taken[b] = true;
}

enum { IDLE, GOOD, BAD };

/* The best partner for a: one that is well, not met before, the nearest behind it. */
static uint32_t partner(uint32_t a, uint32_t n, const bool *taken, const uint8_t *kind,
			const struct pair *before, size_t n_before)
{
	for (int pass = 0; pass < 3; pass++)
		for (uint32_t i = 1; i < n; i++) {
			uint32_t b = (a + i) % n;

			if (taken[b] || (pass == 0 && kind[b] != GOOD) ||
			    (pass < 2 && met(before, n_before, a, b)))
				continue;
			return b;
		}
	return UINT32_MAX;
}

static void kinds_of(uint32_t n, const struct pair *before, size_t n_before, uint8_t *kind)
{
	memset(kind, IDLE, n);
	for (size_t i = 0; i < n_before; i++) {
		uint8_t k = before[i].bad ? BAD : GOOD;

		if (!before[i].measured)
			continue;
		/* One good pair is enough. */
		if (kind[before[i].a] != GOOD)
			kind[before[i].a] = k;
		if (kind[before[i].b] != GOOD)
			kind[before[i].b] = k;
	}
}

size_t pair_round(const bool *present, uint32_t n, const struct pair *before, size_t n_before,
		  struct pair *ret)
{
	static const uint8_t order[] = {IDLE, BAD, GOOD};
	bool taken[PAIR_NODES_MAX];
	uint8_t kind[PAIR_NODES_MAX];
	size_t pairs = 0;

	assert(n <= PAIR_NODES_MAX);
	for (uint32_t i = 0; i < n; i++)
		taken[i] = !present[i];
	kinds_of(n, before, n_before, kind);
	for (size_t k = 0; k < sizeof(order); k++)
		for (uint32_t a = 0; a < n; a++) {
			uint32_t b;

			if (taken[a] || kind[a] != order[k])
				continue;
			taken[a] = true;
			b = partner(a, n, taken, kind, before, n_before);
			if (b != UINT32_MAX)
				add(ret, &pairs, taken, a, b);
		}
	return pairs;
}

/* ---- Who is to blame ---- */

int pairs_judge(struct pair *all, size_t n)
{
	CLEANUP_FREE double *rates = alloc_array(n, sizeof(*rates));
	size_t measured = 0;
	double upper;

	if (!rates)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (all[i].measured && !all[i].failed)
			rates[measured++] = all[i].rate;
	qsort(rates, measured, sizeof(rates[0]), by_value);
	upper = measured ? rates[measured / 2] : 0;
	for (size_t i = 0; i < n; i++)
		all[i].bad = all[i].measured && (all[i].failed || all[i].rate < PAIR_SLOW * upper);
	return 0;
}

/* How often i was in a pair, by how it went; with_good: in a bad one with somebody who is well. */
struct tally {
	unsigned good, bad, with_good, with_named;
};

static struct tally tally_of(uint32_t i, const struct pair *all, size_t n_all,
			     const enum node_blame *blame)
{
	struct tally t = {0};

	for (size_t p = 0; p < n_all; p++) {
		uint32_t other = all[p].a == i ? all[p].b : all[p].a;

		if (!all[p].measured || (all[p].a != i && all[p].b != i))
			continue;
		t.good += !all[p].bad;
		t.bad += all[p].bad;
		t.with_good += all[p].bad && blame[other] == BLAME_NONE;
		t.with_named += all[p].bad && blame[other] == BLAME_NODE;
	}
	return t;
}

/* In three steps, each of which builds on the one before: who is well; who is bad with at least
 * two, one of them well; who was only ever bad with those. */
void pair_blame(const bool *present, uint32_t n, const struct pair *all, size_t n_all,
		enum node_blame *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tally t = tally_of(i, all, n_all, ret);

		ret[i] = !present[i] ? BLAME_ABSENT : t.good || !t.bad ? BLAME_NONE : BLAME_UNKNOWN;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct tally t = tally_of(i, all, n_all, ret);

		if (ret[i] == BLAME_UNKNOWN && t.bad > 1 && t.with_good > 0)
			ret[i] = BLAME_NODE;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct tally t = tally_of(i, all, n_all, ret);

		if (ret[i] == BLAME_UNKNOWN && t.with_named == t.bad)
			ret[i] = BLAME_NONE;
	}
}

bool pair_blames_path(const struct pair *p, const enum node_blame *blame)
{
	return p->bad && blame[p->a] == BLAME_NONE && blame[p->b] == BLAME_NONE;
}
