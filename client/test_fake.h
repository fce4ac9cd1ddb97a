/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fake.h - for tests: a ckptd in a thread that does what the session's protocol says for one
 * rank, remembers what it was told, and misbehaves where it is asked to.
 *
 * It shares nothing with ckptd and nothing with libckpt but the messages. Fields are read and
 * changed between fake_lock() and fake_unlock().
 */
#ifndef CLIENT_TEST_FAKE_H
#define CLIENT_TEST_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "ckpt.h"
#include "proto/beat_page.h"
#include "proto/origin.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

#define FAKE_SLOTS 3
#define FAKE_CONNS 8
#define FAKE_SEALS 64
#define FAKE_OFFERS 16

struct fake_slot {
	uint32_t number;
	int fd;
	uint8_t *base;
	uint64_t bytes;
	bool writing; /* its rank has a credit for it */
	uint64_t credit;
};

struct fake_seal {
	uint64_t step, epoch, credit, image_len;
	uint32_t slot, try;
	uint32_t n_blobs;
	struct {
		char name[64];
		uint64_t offset, bytes;
	} blobs[8];
	uint8_t *image; /* a copy of the slot's bytes when it was sealed */
};

struct fake_skip {
	uint64_t step, epoch, credit;
	uint32_t try, kind;
	bool only_credit;
	char reason[400];
};

/* What the next Load is answered with, in order; the last one stays. */
struct fake_offer {
	int code;               /* an error and its text */
	const char *text;
	uint32_t status;
	const void *plan;       /* bytes of a load plan */
	size_t plan_len;
	const int *fds;         /* of its sources; stay the test's */
	uint32_t n_fds;
	uint32_t per_message;   /* descriptors in one message; 0: all */
	uint64_t step, epoch, fell_back_from;
	uint8_t attempt;        /* every byte of its id */
	uint32_t tier;
	const char *problems[4];
};

struct fake_load_end {
	uint64_t load, leaf;
	uint32_t source;
	bool failed, complete;
};

/* What becomes of a request; see hook. */
enum fake_action {
	FAKE_DO,           /* as the protocol says */
	FAKE_SILENCE,      /* done, never answered */
	FAKE_DROP,         /* the connection ends before it is looked at */
	FAKE_PART_AND_DROP, /* done, of an answer of several messages the first is sent */
	FAKE_DO_AND_DROP,  /* done, and the connection ends instead of the answer */
	FAKE_REFUSE,       /* answered with refuse_code and refuse_text */
	FAKE_GARBAGE,      /* done, and answered with what is no message */
};

struct fake {
	char *dir;
	char path[200];         /* of the socket */
	pthread_t thread;
	bool running;
	pthread_mutex_t mutex;
	int listener, wake[2];
	int conns[FAKE_CONNS];

	/* What it is */
	struct geometry geometry;
	uint64_t epoch;
	uint32_t n_slots;       /* to hand out */
	uint64_t slot_bytes;    /* of the next ones; 0: 4 MiB */
	bool grant;             /* gives the next credit when a slot is free */
	bool no_beats;          /* it is older than beats */
	uint32_t later;         /* slots, the last ones, that SlotsReady leaves without pages */
	bool late_slots;        /* Prepare is not answered before fake_answer_prepare() */
	const char *seal_note;  /* with the next Seal; NULL: nothing */
	uint32_t origin;        /* enum origin_kind: of its loads */
	uint32_t wait_answer;   /* enum ckpt_state that every step has reached */
	int refuse_code;
	const char *refuse_text;
	enum fake_action (*hook)(struct fake *f, const Ckpt__Request *q, void *arg);
	void *hook_arg;
	struct fake_offer offers[FAKE_OFFERS];
	uint32_t n_offers, next_offer;
	const void *stored; /* what Stored is answered with; NULL: CKPT_NOTHING */
	size_t stored_len;
	uint32_t n_list;        /* checkpoints in its list */
	bool list_in_fd;

	/* What it knows */
	bool member;            /* the rank has opened */
	uint8_t *declaration;
	size_t declaration_len;
	struct digest digest;
	struct fake_slot slots[FAKE_SLOTS];
	uint32_t n_taken, next_number, next_slot;
	bool ready;
	struct session_page *page;
	int page_fd;
	struct beat_page *beats; /* NULL: none was asked for */
	int beats_fd;
	uint64_t credit;
	uint64_t blob_bytes;
	uint64_t credit_request;
	int credit_conn;
	uint64_t prepare_request;
	int prepare_conn;
	uint64_t wait_request;
	int wait_conn;

	/* What it was told */
	uint32_t n_requests[32]; /* by body */
	char run_id[129];
	bool reconnect;
	bool failed; /* its Bye said so */
	uint64_t features;
	uint64_t loaded_epoch;
	uint32_t opened_origin; /* enum origin_kind: that a reconnect said */
	bool own_state;         /* the first open said so */
	uint32_t token_len;
	struct fake_seal seals[FAKE_SEALS];
	uint32_t n_seals;
	struct fake_skip skips[FAKE_SEALS];
	uint32_t n_skips;
	uint8_t *wants; /* of the last Read */
	size_t wants_len;
	uint64_t read_step;
	uint8_t read_attempt; /* its first byte */
	struct fake_load_end ends[FAKE_OFFERS];
	uint32_t n_ends;
};

/* Fails the program: assert() is for what cannot be, this for what a test's helper needs. */
#define must(x)                                                                                    \
	do {                                                                                       \
		if (!(x))                                                                          \
			fake_abort(#x, __FILE__, __LINE__);                                        \
	} while (0)
void fake_abort(const char *what, const char *file, int line) __attribute__((noreturn));

/* Also clears the environment of all that libckpt reads. */
struct fake *fake_new(void);
void fake_free(struct fake *f);
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f);
/* Sets a field or a hook's variable while its thread may look at it. */
#define FAKE_SET(f, what, value)                                                                   \
	do {                                                                                       \
		fake_lock(f);                                                                      \
		what = value;                                                                      \
		fake_unlock(f);                                                                    \
	} while (0)
/* Ends its thread, connections and socket; memory stays. Then starts it again. */
void fake_stop(struct fake *f);
void fake_start(struct fake *f);
/* Between stop and start: slots, beats, declaration, member and credits are gone. */
void fake_forget(struct fake *f);
/* Gives a credit if a slot is free, whatever `grant` says. With the lock. */
void fake_give_credit(struct fake *f);
/* Ends late_slots. With the lock. */
void fake_answer_prepare(struct fake *f);
/* A handle as rank 0 of 1 of job "j", run "r". */
struct ckpt *fake_open(struct fake *f);
/* Declares an f32 tensor that is whole on this rank. */
void fake_declare(struct ckpt *c, const char *name, int ndim, const uint64_t *shape);
/* How often a request of this kind came. */
uint32_t fake_count(struct fake *f, int body);
/* Moves the job to the next epoch. */
void fake_next_epoch(struct fake *f);

#endif
