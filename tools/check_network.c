/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_network.c - nodes measure the ways between each other, and name the bad one.
 *
 * All of them are started with the same list of addresses. The first in it that can be reached is
 * the organizer; every node, the organizer too, is a member:
 *
 *   member -> organizer  {"member": i}                               once, when it comes
 *   organizer -> member  {"round": k, "meet": j, "first": true}      or "meet": -1: idle this round
 *   first -> other       {"pair": i, "round": k}                     then pair_measure()
 *   member -> organizer  {"round": k, "rate": x} or {..., "failed": "why"}
 *   organizer -> member  {"result": {...}}                           at the end
 *
 * Two rounds: whoever was in a bad pair meets somebody of a good one in the second, so that the one
 * who is bad in both can be told from the one who only met him; a third where few nodes leave it
 * open. Everything has a deadline; who does not come or does not answer is named and left out.
 *
 * The exchange is not encrypted and proves nobody's identity: it carries nothing but made-up bytes,
 * its port is open only while it lasts, and a stranger can at most spoil the measurement.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tools/check_pair.h"
#include "tools/check_socket.h"
#include "tools/node_check.h"

enum { ORGANIZERS = 3 }; /* that are tried */

struct exchange {
	const struct check_options *options;
	struct check_report *report;
	char *text; /* of addresses, cut at the commas */
	const char *address[PAIR_NODES_MAX];
	uint32_t n, self;
	int listener;
	double join, round, deadline; /* seconds: to wait for others, of one round; when all ends */
	/* The organizer's. */
	int fds[PAIR_NODES_MAX]; /* -1: not there */
	bool present[PAIR_NODES_MAX];
	struct pair pairs[PAIR_ROUNDS_MAX * PAIR_NODES_MAX / 2];
	size_t n_pairs;
};

static int number_of(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_integer(v) ? (int)json_integer_value(v) : -1;
}

/* ---- One round, as a member ---- */

static int meet_as_first(struct exchange *x, uint32_t other, int round, double deadline,
			 int *ret_fd)
{
	int r = check_connect(x->address[other], deadline, ret_fd, NULL);

	return r < 0 ? r
		     : check_send_line(
			       *ret_fd,
			       json_pack("{s:i, s:i}", "pair", (int)x->self, "round", round),
			       deadline);
}

/* Whoever is not the one to be met is sent away: one of an earlier round, or a stranger. */
static int meet_as_other(struct exchange *x, uint32_t first, int round, double deadline,
			 int *ret_fd)
{
	for (;;) {
		json_t *hello = NULL;
		bool right;
		int fd, r = check_accept(x->listener, deadline, &fd);

		if (r < 0)
			return r == -EAGAIN ? -ETIMEDOUT : r;
		r = check_receive_line(fd, deadline, &hello);
		right = r == 0 && number_of(hello, "pair") == (int)first &&
			number_of(hello, "round") == round;
		json_decref(hello);
		if (right) {
			*ret_fd = fd;
			return 0;
		}
		close(fd);
	}
}

/* What to tell the organizer of it. */
static json_t *run_round(struct exchange *x, const json_t *order, double *ret_best)
{
	int round = number_of(order, "round"), meet = number_of(order, "meet"), fd = -1, r;
	bool first = json_is_true(json_object_get(order, "first"));
	double deadline = check_now() + x->round;
	struct pair_rates rates;

	if (meet < 0 || meet >= (int)x->n || meet == (int)x->self)
		return json_pack("{s:i}", "round", round);
	r = first ? meet_as_first(x, (uint32_t)meet, round, deadline, &fd)
		  : meet_as_other(x, (uint32_t)meet, round, deadline, &fd);
	if (r == 0)
		r = pair_measure(fd, first, x->round / 8, deadline, &rates);
	if (fd >= 0)
		close(fd);
	if (r < 0)
		return json_pack("{s:i, s:s}", "round", round, "failed", err_text(r));
	*ret_best = fmax(*ret_best, fmin(rates.there, rates.back));
	return json_pack("{s:i, s:f, s:f}", "round", round, "rate", fmin(rates.there, rates.back),
			 "round_trip", rates.round_trip);
}

/* ---- The organizer ---- */

/* Takes whoever comes until all are there or the time to come is over. */
static void gather(struct exchange *x)
{
	double until = check_now() + x->join;
	uint32_t here = 1;

	x->present[x->self] = true;
	while (here < x->n) {
		json_t *hello = NULL;
		int fd, i, r = check_accept(x->listener, until, &fd);

		if (r < 0)
			return;
		r = check_receive_line(fd, fmin(until, check_now() + 1), &hello);
		i = r == 0 ? number_of(hello, "member") : -1;
		json_decref(hello);
		if (i < 0 || i >= (int)x->n || x->present[i]) {
			close(fd);
			continue;
		}
		x->fds[i] = fd;
		x->present[i] = true;
		here++;
	}
}

static void lose(struct exchange *x, uint32_t i)
{
	if (x->fds[i] >= 0)
		close(x->fds[i]);
	x->fds[i] = -1;
	x->present[i] = false;
}

static void take_answer(struct pair *p, const json_t *answer, const char *why)
{
	const json_t *rate = json_object_get(answer, "rate");
	const char *failed = json_string_value(json_object_get(answer, "failed"));

	if (!rate && !failed && !why)
		return;
	if (!p->measured)
		p->rate = INFINITY;
	p->measured = true;
	if (json_is_number(rate)) {
		p->rate = fmin(p->rate, json_number_value(rate));
		return;
	}
	p->failed = true;
	snprintf(p->why, sizeof(p->why), "%s", why ? why : failed);
}

static struct pair *pair_with(struct pair *pairs, size_t n, uint32_t i)
{
	for (size_t k = 0; k < n; k++)
		if (pairs[k].a == i || pairs[k].b == i)
			return &pairs[k];
	return NULL;
}

static json_t *order_for(const struct pair *p, uint32_t i, int round)
{
	int other = !p ? -1 : (int)(p->a == i ? p->b : p->a);

	return json_pack("{s:i, s:i, s:b}", "round", round, "meet", other, "first", p && p->a == i);
}

static int organize_round(struct exchange *x, int round, double *ret_best)
{
	struct pair *pairs = &x->pairs[x->n_pairs], *mine;
	size_t n = pair_round(x->present, x->n, x->pairs, x->n_pairs, pairs);
	double deadline = check_now() + x->round + 2;
	json_t *order, *answer;

	for (uint32_t i = 0; i < x->n; i++)
		if (x->fds[i] >= 0 &&
		    check_send_line(x->fds[i], order_for(pair_with(pairs, n, i), i, round),
				    deadline) < 0)
			lose(x, i);
	mine = pair_with(pairs, n, x->self);
	order = order_for(mine, x->self, round);
	answer = run_round(x, order, ret_best);
	if (mine)
		take_answer(mine, answer, NULL);
	json_decref(order);
	json_decref(answer);
	for (uint32_t i = 0; i < x->n; i++) {
		struct pair *p = pair_with(pairs, n, i);
		int r;

		if (x->fds[i] < 0)
			continue;
		answer = NULL;
		r = check_receive_line(x->fds[i], deadline, &answer);
		if (p)
			take_answer(p, answer, r < 0 ? "it did not answer" : NULL);
		json_decref(answer);
		if (r < 0)
			lose(x, i);
	}
	x->n_pairs += n;
	return pairs_judge(x->pairs, x->n_pairs);
}

/* Whether another round would tell who it is. */
static bool is_open(const struct exchange *x, const enum node_blame *blame)
{
	uint32_t here = 0;
	bool open = false;

	for (uint32_t i = 0; i < x->n; i++) {
		here += x->present[i];
		open = open || blame[i] == BLAME_UNKNOWN;
	}
	return open && here > 2;
}

static json_t *sentence(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static json_t *sentence(const char *fmt, ...)
{
	char text[240];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return json_string(text);
}

/* {"blame": [a code per node], "words": ["...", ...]} */
static json_t *conclude(const struct exchange *x, const enum node_blame *blame)
{
	json_t *codes = json_array(), *words = json_array();

	for (uint32_t i = 0; i < x->n; i++) {
		json_array_append_new(codes, json_integer(blame[i]));
		if (blame[i] == BLAME_ABSENT)
			json_array_append_new(words, sentence("%s did not come or did not answer",
							      x->address[i]));
		else if (blame[i] == BLAME_NODE)
			json_array_append_new(words,
					      sentence("%s is slow or fails with everybody it met",
						       x->address[i]));
	}
	for (size_t i = 0; i < x->n_pairs; i++) {
		const struct pair *p = &x->pairs[i];
		const char *a = x->address[p->a], *b = x->address[p->b];

		if (pair_blames_path(p, blame))
			json_array_append_new(words,
					      sentence("the path between %s and %s is slow or "
						       "fails, and both are well with others",
						       a, b));
		else if (p->bad && blame[p->a] == BLAME_UNKNOWN && blame[p->b] == BLAME_UNKNOWN)
			json_array_append_new(words,
					      sentence("%s or %s is slow or fails: there was "
						       "nobody else to tell which",
						       a, b));
	}
	return json_pack("{s:o, s:o}", "blame", codes, "words", words);
}

static int organize(struct exchange *x, double *ret_best, json_t **ret)
{
	CLEANUP_FREE enum node_blame *blame = alloc_array(x->n, sizeof(*blame));
	int r = blame ? 0 : -ENOMEM;

	gather(x);
	for (int round = 0; round < PAIR_ROUNDS_MAX && r == 0; round++) {
		if (round == PAIR_ROUNDS_MAX - 1 && !is_open(x, blame))
			break;
		r = organize_round(x, round, ret_best);
		if (r == 0)
			pair_blame(x->present, x->n, x->pairs, x->n_pairs, blame);
	}
	if (r < 0)
		return r;
	*ret = conclude(x, blame);
	for (uint32_t i = 0; i < x->n; i++)
		if (x->fds[i] >= 0) {
			/* Who is gone by now has been measured all the same. */
			ignore_result(check_send_line(x->fds[i], json_pack("{s:O}", "result", *ret),
						      x->deadline));
			close(x->fds[i]);
		}
	return 0;
}

/* ---- A member ---- */

static int follow(struct exchange *x, int fd, double *ret_best, json_t **ret)
{
	int r = check_send_line(fd, json_pack("{s:i}", "member", (int)x->self), x->deadline);

	while (r == 0) {
		json_t *message = NULL, *result;

		r = check_receive_line(fd, x->deadline, &message);
		if (r < 0)
			return r;
		result = json_object_get(message, "result");
		if (result) {
			*ret = json_incref(result);
			json_decref(message);
			return 0;
		}
		r = check_send_line(fd, run_round(x, message, ret_best), x->deadline);
		json_decref(message);
	}
	return r;
}

static int take_part(struct exchange *x, double *ret_best, json_t **ret)
{
	for (uint32_t i = 0; i < x->n && i < ORGANIZERS; i++) {
		int fd, r;

		if (i == x->self)
			return organize(x, ret_best, ret);
		r = check_connect(x->address[i], check_now() + x->join, &fd, NULL);
		if (r < 0)
			continue;
		r = follow(x, fd, ret_best, ret);
		close(fd);
		return r;
	}
	return -EHOSTUNREACH;
}

/* ---- What this node says of it ---- */

static int split_peers(struct exchange *x, struct err *e)
{
	char *save = NULL;

	x->text = alloc_str(x->options->peers);
	if (!x->text)
		return err_code(e, -ENOMEM, "node-check");
	x->self = UINT32_MAX;
	for (char *at = strtok_r(x->text, ",", &save); at; at = strtok_r(NULL, ",", &save)) {
		if (x->n == PAIR_NODES_MAX)
			return err_set(e, -EINVAL, "--peers names more than %d nodes",
				       PAIR_NODES_MAX);
		if (x->self == UINT32_MAX &&
		    (x->options->self ? strcmp(at, x->options->self) == 0 : check_is_mine(at)))
			x->self = x->n;
		x->fds[x->n] = -1;
		x->address[x->n++] = at;
	}
	if (x->self == UINT32_MAX)
		return err_set(e, -EINVAL, "none of --peers is this node: name it with --self");
	return x->n < 2 ? err_set(e, -EINVAL, "--peers names nobody else") : 0;
}

static void tell(struct exchange *x, const json_t *result, double best)
{
	const json_t *blame = json_object_get(result, "blame"), *words, *one;
	long long mine = json_integer_value(json_array_get(blame, x->self));
	char all[200] = "";
	size_t i, len = 0;

	words = json_object_get(result, "words");
	json_array_foreach((json_t *)words, i, one)
	{
		int n = snprintf(all + len, sizeof(all) - len, "%s%s", i ? "; " : "",
				 json_string_value(one) ? json_string_value(one) : "");

		len += n > 0 && (size_t)n < sizeof(all) - len ? (size_t)n : 0;
	}
	if (best > 0)
		check_value(x->report, "network-pair", best / 1e6, "MB/s", true);
	if (mine == BLAME_NODE || mine == BLAME_UNKNOWN)
		check_say(x->report, "network", CHECK_FAILED, "%s", all);
	else
		check_say(x->report, "network", CHECK_PASSED, "%s", all);
}

void check_network(const struct check_options *o, struct check_report *r)
{
	struct exchange *x;
	json_t *result = NULL;
	struct err e = {0};
	double best = 0;
	int err;

	if (!o->peers)
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		check_say(r, "network", CHECK_SKIPPED, "out of memory");
		return;
	}
	x->options = o;
	x->report = r;
	x->listener = -1;
	x->join = o->seconds / 4;
	x->round = o->seconds / 8;
	x->deadline = check_now() + o->seconds;
	err = split_peers(x, &e);
	if (err == 0)
		err = check_listen(x->address[x->self], &x->listener, &e);
	if (err < 0) {
		check_say(r, "network", CHECK_SKIPPED, "%s", e.text);
	} else {
		err = take_part(x, &best, &result);
		if (err < 0)
			check_say(r, "network", CHECK_FAILED,
				  "the first of --peers could not be reached or went away: %s",
				  err_text(err));
		else
			tell(x, result, best);
	}
	json_decref(result);
	if (x->listener >= 0)
		close(x->listener);
	alloc_free(x->text);
	alloc_free(x);
}
