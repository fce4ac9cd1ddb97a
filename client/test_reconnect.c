/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptd goes away at every point, and comes back with its memory, without it, or not at all.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/clock.h"
#include "client/test_fake.h"
#include "tests/lib/test.h"

#define BYTES 20000u

struct world {
	struct fake *f;
	struct ckpt *c;
	uint8_t data[BYTES];
	struct ckpt_binding b;
	struct ckpt_save_args a;
	/* Drops the connection at a request of this kind, once. */
	int at;
	enum fake_action action;
	int dropped;
};

static enum fake_action drop_once(struct fake *f, const Ckpt__Request *q, void *arg)
{
	struct world *w = arg;

	(void)f;
	if ((int)q->body_case != w->at)
		return FAKE_DO;
	w->at = 0;
	w->dropped++;
	return w->action;
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	uint64_t shape[1] = { BYTES / 4 };

	w->f = fake_new();
	w->c = fake_open(w->f);
	fake_declare(w->c, "w", 1, shape);
	test_fill(w->data, BYTES, 1);
	w->b = (struct ckpt_binding){ .ptr = w->data, .device = CKPT_HOST, .dtype = CKPT_F32,
				      .bytes = BYTES };
	w->a = (struct ckpt_save_args){ .size = sizeof(w->a), .step = 1, .tensors = &w->b,
					.n_tensors = 1, .timeout_ms = 10000,
					.flags = CKPT_WAIT_CREDIT };
	FAKE_SET(w->f, w->f->hook_arg, w);
	FAKE_SET(w->f, w->f->hook, drop_once);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	free(w);
	return 0;
}

static uint64_t reconnects(struct ckpt *c)
{
	struct ckpt_stats s = { .size = sizeof(s) };

	assert_int_equal(ckpt_stats(c, &s), 0);
	return s.reconnects;
}

/* The connection ends before a request is handled or before its answer is sent; the call goes on
 * over a new one and says so once. */
static void test_lost_at_each_request(void **state)
{
	struct world *w = *state;
	static const int kinds[] = { CKPT__REQUEST__BODY_DECLARE, CKPT__REQUEST__BODY_PREPARE,
				     CKPT__REQUEST__BODY_SLOTS_READY };
	uint32_t seals = 0;

	for (int action = FAKE_DROP; action <= FAKE_DO_AND_DROP;
	     action += FAKE_DO_AND_DROP - FAKE_DROP) {
		for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
			ckpt_close(w->c);
			w->c = fake_open(w->f);
			fake_declare(w->c, "w", 1, (uint64_t[]){ BYTES / 4 });
			FAKE_SET(w->f, w->action, (enum fake_action)action);
			FAKE_SET(w->f, w->at, kinds[i]);
			assert_int_equal(ckpt_prepare(w->c, 0), CKPT_RECONNECTED);
			assert_int_equal(reconnects(w->c), 1);
			w->a.step++;
			assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
			seals++;
		}
		FAKE_SET(w->f, w->at, CKPT__REQUEST__BODY_SEAL);
		w->a.step++;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
		seals++;
		assert_int_equal(w->f->n_seals, seals); /* repeated, and one snapshot */
		assert_memory_equal(w->f->seals[seals - 1].image, w->data, BYTES);
		assert_true(w->f->reconnect);
		assert_string_equal(w->f->run_id, "r");
		assert_int_equal(w->f->token_len, 32);
		assert_int_equal(w->f->loaded_epoch, 1);
		FAKE_SET(w->f, w->at, CKPT__REQUEST__BODY_WAIT);
		assert_int_equal(ckpt_wait(w->c, w->a.step, CKPT_DURABLE, 5000, NULL),
				 CKPT_RECONNECTED);
		assert_int_equal(ckpt_wait(w->c, w->a.step, CKPT_DURABLE, 5000, NULL), CKPT_OK);
		FAKE_SET(w->f, w->at, CKPT__REQUEST__BODY_LIST);
		assert_int_equal(ckpt_list(w->c, NULL, 0), 0); /* a count has no room for it */
		assert_int_equal(ckpt_pump(w->c), CKPT_RECONNECTED);
	}
	assert_int_equal(w->dropped, 12);
}

/* Reconnecting is itself cut off, at each of its steps. */
static void test_lost_while_reconnecting(void **state)
{
	struct world *w = *state;
	static const int kinds[] = { CKPT__REQUEST__BODY_HELLO, CKPT__REQUEST__BODY_OPEN,
				     CKPT__REQUEST__BODY_DECLARE, CKPT__REQUEST__BODY_PREPARE,
				     CKPT__REQUEST__BODY_SLOTS_READY };

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		fake_stop(w->f);
		fake_forget(w->f);
		w->action = i % 2 ? FAKE_DROP : FAKE_DO_AND_DROP;
		w->at = kinds[i];
		fake_start(w->f);
		w->a.step++;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
		assert_int_equal(w->at, 0);
		assert_int_equal(w->f->n_seals, i + 1);
		assert_memory_equal(w->f->seals[i].image, w->data, BYTES);
	}
}

static void test_back_with_its_memory(void **state)
{
	struct world *w = *state;
	uint32_t prepares;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	prepares = fake_count(w->f, CKPT__REQUEST__BODY_PREPARE);
	fake_stop(w->f);
	fake_start(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	w->a.step = 3;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares);
	assert_int_equal(w->f->n_seals, 3);
	assert_int_equal(w->f->seals[2].credit, 3);
}

/* New slots have the old numbers and credits count from one again: nothing of the old ones may be
 * mistaken for them. */
static void test_back_without_its_memory(void **state)
{
	struct world *w = *state;

	for (w->a.step = 1; w->a.step <= 3; w->a.step++)
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	assert_int_equal(w->f->n_seals, 4);
	assert_int_equal(w->f->seals[3].credit, 1);
	assert_memory_equal(w->f->seals[3].image, w->data, BYTES);
	assert_non_null(w->f->declaration);
}

static enum fake_action forget_at_seal(struct fake *f, const Ckpt__Request *q, void *arg)
{
	bool *armed = arg;

	if (q->body_case != CKPT__REQUEST__BODY_SEAL || !*armed)
		return FAKE_DO;
	*armed = false;
	fake_forget(f);
	return FAKE_DROP;
}

/* Between copy and seal: a repeated Seal would seal an empty slot that happens to have the same
 * number and credit. */
static void test_memory_lost_between_copy_and_seal(void **state)
{
	struct world *w = *state;
	static bool armed = true; /* the other thread looks at it until the teardown */

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	FAKE_SET(w->f, w->f->hook_arg, &armed);
	FAKE_SET(w->f, w->f->hook, forget_at_seal);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EUNAVAILABLE);
	assert_non_null(strstr(ckpt_last_error(NULL), "without its memory"));
	assert_int_equal(w->f->n_seals, 0);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	assert_int_equal(w->f->n_seals, 1);
	assert_memory_equal(w->f->seals[0].image, w->data, BYTES);
	/* The same between begin and fence. */
	FAKE_SET(w->f, armed, true);
	w->a.step = 3;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_EUNAVAILABLE);
	w->a.step = 4;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_RECONNECTED);
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	assert_int_equal(ckpt_wait(w->c, 2, CKPT_SEALED, 5000, NULL), CKPT_RECONNECTED);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_EUNAVAILABLE);
	assert_int_equal(w->f->n_seals, 1);
}

static enum fake_action replace_at_seal(struct fake *f, const Ckpt__Request *q, void *arg)
{
	bool *armed = arg;

	if (q->body_case != CKPT__REQUEST__BODY_SEAL || !*armed)
		return FAKE_DO;
	*armed = false;
	f->slots[0].number += 100;
	return FAKE_DROP;
}

/* What ckptd is told with a credit of slots that this process has not: of no step that it did not
 * try to save, or people look for a step 0. */
static void test_credit_of_other_slots(void **state)
{
	struct world *w = *state;
	static bool armed = true; /* the other thread looks at it until the teardown */
	const struct fake_skip *k = w->f->skips;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	fake_stop(w->f);
	w->f->slots[0].number += 100;
	fake_start(w->f);
	w->a.step = 7;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	assert_int_equal(w->f->n_skips, 1);
	assert_true(k[0].only_credit);
	assert_int_equal(k[0].credit, 1);
	FAKE_SET(w->f, w->f->hook_arg, &armed);
	FAKE_SET(w->f, w->f->hook, replace_at_seal);
	w->a.step = 8;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EUNAVAILABLE);
	assert_int_equal(w->f->n_skips, 2);
	assert_false(k[1].only_credit);
	assert_int_equal(k[1].step, 8);
	assert_int_equal(k[1].epoch, 1);
	assert_int_equal(k[1].kind, CKPT_SKIP_FAILED);
	w->a.step = 9;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	assert_int_equal(w->f->n_skips, 2);
}

static void test_gone_for_good(void **state)
{
	struct world *w = *state;
	struct ckpt_stats s = { .size = sizeof(s) };

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_stop(w->f);
	w->a.step = 2;
	w->a.timeout_ms = 40;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EUNAVAILABLE);
	assert_non_null(strstr(ckpt_last_error(NULL), w->f->path));
	assert_non_null(strstr(ckpt_last_error(NULL), "systemctl start ckptd"));
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 40, NULL), CKPT_EUNAVAILABLE);
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 0, NULL), CKPT_EUNAVAILABLE);
	assert_int_equal(ckpt_stats(w->c, &s), 0);
	assert_int_equal(s.failed, 1);
	fake_start(w->f);
	w->a.timeout_ms = 10000;
	w->a.step = 3;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	/* Closing a handle whose ckptd is gone takes no time. */
	fake_stop(w->f);
}

/* ---- While ckptd is away ---- */

static uint64_t ms_since(uint64_t start)
{
	return (clock_ns() - start) / NS_PER_MS;
}

static void save_in_vain(struct world *w)
{
	w->a.step++;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EUNAVAILABLE);
}

/* One save waits for a second, those behind it fail at once and say why; the first one after ckptd
 * is back works. */
static void test_saves_lose_one_second(void **state)
{
	struct world *w = *state;
	struct ckpt_stats s = {.size = sizeof(s)};
	uint64_t start;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int round = 0; round < 2; round++) {
		fake_stop(w->f);
		start = clock_ns();
		save_in_vain(w);
		assert_in_range(ms_since(start), 900, 10000);
		assert_non_null(strstr(ckpt_last_error(NULL), "systemctl start ckptd"));
		start = clock_ns();
		for (int i = 0; i < 20; i++) {
			save_in_vain(w);
			assert_non_null(strstr(ckpt_last_error(NULL), w->f->path));
			assert_non_null(strstr(ckpt_last_error(NULL), "has been away for "));
			assert_non_null(strstr(ckpt_last_error(NULL), "tries again in "));
			assert_non_null(strstr(ckpt_last_error(NULL), "may be restarting"));
			assert_int_equal(ckpt_skip(w->c, w->a.step, NULL), CKPT_EUNAVAILABLE);
			assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 0, NULL),
					 CKPT_EUNAVAILABLE);
		}
		assert_true(ms_since(start) < 900); /* each waited for a second before */
		fake_start(w->f);
		w->a.step++;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	}
	assert_int_equal(ckpt_stats(w->c, &s), 0);
	assert_int_equal(s.failed, 42);
	assert_int_equal(s.reconnects, 2);
}

/* One that takes connections and says nothing: hung, or stopped. Only now and then a save asks it,
 * and none waits for long; when it goes on the next try finds it. */
static void test_saves_ask_a_silent_one_seldom(void **state)
{
	struct world *w = *state;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	uint64_t start, slow = 0;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), asked = 0;
	char kept[220];

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_stop(w->f);
	strcpy(a.sun_path, w->f->path);
	assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(s, 64), 0);
	save_in_vain(w);
	start = clock_ns();
	while (ms_since(start) < 3500) {
		uint64_t one = clock_ns();

		save_in_vain(w);
		slow += ms_since(one) > 100;
		poll(NULL, 0, 20);
	}
	for (int fd; (fd = accept(s, NULL, NULL)) >= 0; asked++)
		close(fd);
	assert_in_range(asked, 2, 4); /* by the first, after one second, after two more */
	assert_in_range(slow, 0, 10); /* of more than a hundred */
	/* A new socket is tried at once, whenever the next try was due. */
	snprintf(kept, sizeof(kept), "%s.kept", w->f->path);
	assert_int_equal(rename(w->f->path, kept), 0);
	fake_start(w->f);
	w->a.step++;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	unlink(kept);
	close(s);
}

static enum fake_action all_silent(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)q;
	return *(bool *)arg ? FAKE_SILENCE : FAKE_DO;
}

static uint64_t save_unanswered(struct world *w, int code)
{
	uint64_t start = clock_ns();

	w->a.step++;
	assert_int_equal(ckpt_save(w->c, &w->a), code);
	return ms_since(start);
}

/* ckptd is stopped, and its socket takes all that is sent: one save waits, for a part of its time,
 * and those behind it fail at once until it speaks. The seal that it has read after all is settled
 * before its slot is written again. */
static void test_a_silent_ckptd_stalls_one_save(void **state)
{
	struct world *w = *state;
	static bool silent;
	uint64_t start, took;
	int r = 0;

	FAKE_SET(w->f, silent, false);
	FAKE_SET(w->f, w->f->hook_arg, &silent);
	FAKE_SET(w->f, w->f->hook, all_silent);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int round = 0; round < 2; round++) {
		uint32_t seals, skips;

		fake_lock(w->f);
		seals = w->f->n_seals;
		skips = w->f->n_skips;
		fake_unlock(w->f);
		FAKE_SET(w->f, silent, true);
		w->a.timeout_ms = round == 0 ? CKPT_DEFAULT_TIMEOUT : 0;
		took = save_unanswered(w, CKPT_ETIMEDOUT);
		assert_in_range(took, round == 0 ? 4500 : 900, round == 0 ? 9000 : 4000);
		start = clock_ns();
		/* After a second it is asked again. */
		for (int i = 0; i < 20 && ms_since(start) < 400; i++)
			save_unanswered(w, CKPT_EUNAVAILABLE);
		assert_true(ms_since(start) < 800);
		assert_non_null(strstr(ckpt_last_error(NULL), "does not answer"));
		assert_int_equal(ckpt_list(w->c, NULL, 0), CKPT_EUNAVAILABLE);
		fake_lock(w->f);
		assert_int_equal(w->f->n_seals, seals + 1); /* it had come */
		silent = false;
		fake_unlock(w->f);
		w->a.timeout_ms = 10000;
		for (start = clock_ns(); ms_since(start) < 20000; poll(NULL, 0, 50)) {
			w->a.step++;
			r = ckpt_save(w->c, &w->a);
			if (r != CKPT_EUNAVAILABLE)
				break;
		}
		assert_int_equal(r, CKPT_RECONNECTED);
		fake_lock(w->f);
		assert_int_equal(w->f->n_skips, skips + 1);
		assert_int_equal(w->f->skips[skips].credit, w->f->seals[seals].credit);
		assert_int_equal(w->f->n_seals, seals + 2);
		assert_true(w->f->seals[seals].slot != w->f->seals[seals + 1].slot);
		fake_unlock(w->f);
	}
}

static void *start_in_1500_ms(void *arg)
{
	poll(NULL, 0, 1500);
	fake_start(arg);
	return NULL;
}

/* What has time to wait waits for ckptd, also while saves fail at once. */
static void test_waits_and_loads_have_patience(void **state)
{
	struct world *w = *state;
	struct ckpt_load_args l = {.size = sizeof(l),
				   .step = CKPT_LATEST,
				   .tensors = &w->b,
				   .n_tensors = 1,
				   .timeout_ms = 20000};
	struct fake_offer nothing = {.status = CKPT_NOTHING};
	pthread_t t;

	FAKE_SET(w->f, w->f->offers[0], nothing);
	FAKE_SET(w->f, w->f->n_offers, 1);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int load = 0; load < 2; load++) {
		fake_stop(w->f);
		w->a.timeout_ms = 40;
		save_in_vain(w);
		assert_int_equal(pthread_create(&t, NULL, start_in_1500_ms, w->f), 0);
		if (load)
			assert_int_equal(ckpt_load(w->c, &l, NULL),
					 CKPT_NOTHING | CKPT_RECONNECTED);
		else
			assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 20000, NULL),
					 CKPT_RECONNECTED);
		pthread_join(t, NULL);
	}
}

static enum fake_action seal_then_silence(struct fake *f, const Ckpt__Request *q, void *arg)
{
	bool *armed = arg;

	(void)f;
	if (q->body_case != CKPT__REQUEST__BODY_SEAL || !*armed)
		return FAKE_DO;
	*armed = false;
	return FAKE_SILENCE;
}

/* Sealed, not heard of, then ckptd is restarted with its memory: the credit is settled first. */
static void test_unknown_seal_is_settled_after_a_restart(void **state)
{
	struct world *w = *state;
	static bool armed = true; /* the other thread looks at it until the teardown */

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	FAKE_SET(w->f, w->f->hook_arg, &armed);
	FAKE_SET(w->f, w->f->hook, seal_then_silence);
	w->a.timeout_ms = 40;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ETIMEDOUT);
	fake_stop(w->f);
	fake_start(w->f);
	w->a.timeout_ms = 10000;
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	assert_int_equal(w->f->n_skips, 1);
	assert_int_equal(w->f->skips[0].credit, 1);
	assert_int_equal(w->f->n_seals, 2);
	assert_true(w->f->seals[0].slot != w->f->seals[1].slot);
}

static enum fake_action always_drop_list(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_LIST ? FAKE_DROP : FAKE_DO;
}

/* A request that kills ckptd every time is not repeated for ever. */
static void test_poison(void **state)
{
	struct world *w = *state;

	FAKE_SET(w->f, w->f->hook, always_drop_list);
	assert_int_equal(ckpt_list(w->c, NULL, 0), CKPT_EUNAVAILABLE);
	assert_in_range(fake_count(w->f, CKPT__REQUEST__BODY_LIST), 2, 5);
	FAKE_SET(w->f, w->f->hook, NULL);
	assert_int_equal(ckpt_list(w->c, NULL, 0), 0);
}

static enum fake_action refuse_reopen(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_OPEN ? FAKE_REFUSE : FAKE_DO;
}

static void test_not_let_in_again(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_stop(w->f);
	FAKE_SET(w->f, w->f->hook, refuse_reopen);
	FAKE_SET(w->f, w->f->refuse_code, CKPT_EEPOCH);
	FAKE_SET(w->f, w->f->refuse_text, "open: its run id belongs to an older launch");
	fake_start(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EEPOCH);
	assert_string_equal(ckpt_last_error(NULL),
			    "ckpt_save: open: its run id belongs to an older launch");
	/* Another geometry: the image would lie elsewhere. */
	FAKE_SET(w->f, w->f->hook, NULL);
	FAKE_SET(w->f, w->f->geometry.leaf, 8192);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EVERSION);
	FAKE_SET(w->f, w->f->geometry.leaf, 4096);
	/* The job went on: the save is refused until this rank has loaded. */
	FAKE_SET(w->f, w->f->epoch, 2);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EEPOCH);
	assert_int_equal(w->f->loaded_epoch, 1);
}

/* A ckptd that stops or starts, or whose log cannot be written, says so in its own words, and is
 * one that cannot be had now: neither -EAGAIN nor a timeout of the call's own. */
static void test_back_and_not_ready(void **state)
{
	struct world *w = *state;
	static const struct {
		int code;
		const char *text;
	} refusals[] = {
		{ -EAGAIN, "open: ckptd is still starting" },
		{ CKPT_ETIMEDOUT, "open: the job's log cannot be written (is the disk full?)" },
	};

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	w->a.timeout_ms = 500;
	for (size_t i = 0; i < 2; i++) {
		fake_stop(w->f);
		FAKE_SET(w->f, w->f->hook, refuse_reopen);
		FAKE_SET(w->f, w->f->refuse_code, refusals[i].code);
		FAKE_SET(w->f, w->f->refuse_text, refusals[i].text);
		fake_start(w->f);
		w->a.step++;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_EUNAVAILABLE);
		assert_non_null(strstr(ckpt_last_error(NULL), refusals[i].text));
		assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 500, NULL), CKPT_EUNAVAILABLE);
		assert_non_null(strstr(ckpt_last_error(NULL), refusals[i].text));
		FAKE_SET(w->f, w->f->hook, NULL);
		w->a.step++;
		w->a.timeout_ms = 10000;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
		w->a.timeout_ms = 500;
	}
}

static atomic_int populate_ms; /* longer than it would take */

int madvise(void *base, size_t len, int advice)
{
	if (advice == MADV_POPULATE_WRITE)
		poll(NULL, 0, atomic_load(&populate_ms));
	return (int)syscall(SYS_madvise, base, len, advice);
}

static atomic_int unmap_ms; /* of each slot; likewise */

int munmap(void *base, size_t len)
{
	if (len >= 4u << 20)
		poll(NULL, 0, atomic_load(&unmap_ms));
	return (int)syscall(SYS_munmap, base, len);
}

/* A save whose time is over does not wait until its Skip was heard. */
static void await_skips(struct world *w, uint32_t n)
{
	for (;;) {
		bool there;

		fake_lock(w->f);
		there = w->f->n_skips >= n;
		fake_unlock(w->f);
		if (there)
			return;
		poll(NULL, 0, 1);
	}
}

static uint64_t ms_of_save(struct world *w, int *ret)
{
	uint64_t start = clock_ns();

	w->a.step++;
	*ret = ckpt_save(w->c, &w->a);
	return (clock_ns() - start) / NS_PER_MS;
}

/* New slots take their time. No save does: it is skipped, or waits within its own if it was asked
 * to. Neither a second loss nor the end of the handle waits for all of them. */
static void test_new_slots_stall_nobody(void **state)
{
	struct world *w = *state;
	uint32_t prepares;
	uint64_t took;
	int r;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	atomic_store(&populate_ms, 1000);
	for (int wait = 0; wait < 2; wait++) {
		fake_stop(w->f);
		fake_forget(w->f);
		fake_start(w->f);
		w->a.flags = wait ? CKPT_WAIT_CREDIT : 0;
		w->a.timeout_ms = 100;
		took = ms_of_save(w, &r);
		assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
		assert_true(took < 900);
	}
	/* The connection alone is lost: they stay what this rank has. */
	prepares = fake_count(w->f, CKPT__REQUEST__BODY_PREPARE);
	fake_stop(w->f);
	fake_start(w->f);
	took = ms_of_save(w, &r);
	assert_true(took < 900);
	w->a.timeout_ms = 10000;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_OK);
	assert_in_range(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares, prepares + 1);
	assert_int_equal(w->f->n_seals, 2);
	assert_memory_equal(w->f->seals[1].image, w->data, BYTES);
	/* And while the first of them are being made. */
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	w->a.timeout_ms = 100;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
	took = clock_ns();
	ckpt_close(w->c);
	assert_true((clock_ns() - took) / NS_PER_MS < 2500);
	atomic_store(&populate_ms, 0);
	w->c = fake_open(w->f);
}

/* ckptd takes its time to make them: it is asked once, and every save looks for its answer. */
static void test_late_slots(void **state)
{
	struct world *w = *state;
	uint32_t prepares;
	uint64_t took;
	int r;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	prepares = fake_count(w->f, CKPT__REQUEST__BODY_PREPARE);
	fake_stop(w->f);
	fake_forget(w->f);
	FAKE_SET(w->f, w->f->late_slots, true);
	fake_start(w->f);
	for (int i = 0; i < 6; i++) {
		w->a.flags = i % 2 ? CKPT_WAIT_CREDIT : 0;
		w->a.timeout_ms = i % 2 ? 200 : 10000;
		took = ms_of_save(w, &r);
		assert_int_equal(r, i ? CKPT_SKIPPED : CKPT_SKIPPED | CKPT_RECONNECTED);
		assert_true(took < (i % 2 ? 5000 : 900));
	}
	await_skips(w, 6);
	assert_int_equal(w->f->skips[5].kind, CKPT_SKIP_SLOTS);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares + 1);
	/* The connection is lost meanwhile: then again, over the new one. */
	fake_stop(w->f);
	fake_start(w->f);
	w->a.timeout_ms = 300;
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares + 2);
	fake_lock(w->f);
	fake_answer_prepare(w->f);
	fake_unlock(w->f);
	w->a.timeout_ms = 10000;
	ms_of_save(w, &r);
	assert_int_equal(r, CKPT_OK);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_PREPARE), prepares + 2);
}

/* Answered, and lost with ckptd's memory before anybody looked at the answer. */
static void test_late_slots_are_lost_again(void **state)
{
	struct world *w = *state;
	int r;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	fake_stop(w->f);
	fake_forget(w->f);
	FAKE_SET(w->f, w->f->late_slots, true);
	fake_start(w->f);
	w->a.timeout_ms = 300;
	ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
	fake_lock(w->f);
	fake_answer_prepare(w->f);
	fake_unlock(w->f);
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	w->a.timeout_ms = 10000;
	ms_of_save(w, &r);
	assert_int_equal(r, CKPT_RECONNECTED);
	assert_int_equal(w->f->n_seals, 2);
	assert_memory_equal(w->f->seals[1].image, w->data, BYTES);
}

/* This process holds the last reference to slots that ckptd lost: it frees their pages. */
static void test_old_slots_stall_nobody(void **state)
{
	struct world *w = *state;
	uint64_t took;
	int r;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int wait = 0; wait < 2; wait++) {
		fake_stop(w->f);
		fake_forget(w->f);
		fake_start(w->f);
		w->a.flags = wait ? CKPT_WAIT_CREDIT : 0;
		w->a.timeout_ms = 300;
		atomic_store(&unmap_ms, 1000);
		took = ms_of_save(w, &r);
		assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
		assert_true(took < 2000);
		took = ms_of_save(w, &r); /* of three slots */
		assert_int_equal(r, CKPT_SKIPPED);
		assert_true(took < 2000);
		atomic_store(&unmap_ms, 0);
		w->a.flags = CKPT_WAIT_CREDIT;
		w->a.timeout_ms = 10000;
		took = ms_of_save(w, &r);
		assert_int_equal(r, CKPT_OK);
		assert_memory_equal(w->f->seals[wait + 1].image, w->data, BYTES);
	}
	assert_int_equal(w->f->n_seals, 3);
	/* Closed while they are being unmapped: the rest of them is not forgotten. */
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	w->a.timeout_ms = 300;
	atomic_store(&unmap_ms, 100);
	took = ms_of_save(w, &r);
	assert_int_equal(r, CKPT_SKIPPED | CKPT_RECONNECTED);
	ckpt_close(w->c);
	atomic_store(&unmap_ms, 0);
	w->c = fake_open(w->f);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_lost_at_each_request),
		T(test_lost_while_reconnecting),
		T(test_back_with_its_memory),
		T(test_back_without_its_memory),
		T(test_memory_lost_between_copy_and_seal),
		T(test_credit_of_other_slots),
		T(test_gone_for_good),
		T(test_saves_lose_one_second),
		T(test_saves_ask_a_silent_one_seldom),
		T(test_a_silent_ckptd_stalls_one_save),
		T(test_waits_and_loads_have_patience),
		T(test_unknown_seal_is_settled_after_a_restart),
		T(test_poison),
		T(test_not_let_in_again),
		T(test_back_and_not_ready),
		T(test_new_slots_stall_nobody),
		T(test_late_slots),
		T(test_late_slots_are_lost_again),
		T(test_old_slots_stall_nobody),
	};

	return cmocka_run_group_tests_name("reconnect", tests, NULL, NULL);
}
