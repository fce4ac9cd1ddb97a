/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - the handle, and what its parts offer each other.
 *
 *   handle.c      open, close, what every call begins and ends with; environment.c: its defaults
 *   session.c     joining ckptd, and joining it again when it was lost; channel.c, request.c: what
 *                 is sent and answered
 *   declare.c     declaration, and whether bindings fit it
 *   prepare.c     slots: asked for; mapping.c: mapped (slots.c), populated by the thread, let go of
 *   image.c       from bindings into an image and back, host or device
 *   save.c        credit, copy, seal; overlap.c: the same in two halves with a thread between
 *   beat.c        steps and phases, told without a message
 *   wait.c list.c
 *   load.c        targets.c: where to, without overlaps; touched.c: which leaves; ranges.c and
 *                 source.c: read in which pieces; placer.c: by threads; turns.c, pace.c: how many
 *                 at once; pages.c: into fresh memory; loaded.c: what it leaves
 *   stored.c      what a checkpoint holds, and reads of parts of it
 *
 * Invariants:
 *  (1) a slot is written only with a credit for it that was not used before: without one the slot
 *      may hold a sealed snapshot;
 *  (2) a Seal is never repeated to a ckptd that no longer has the slots it speaks of: a new slot
 *      of the same number would be sealed with nothing in it;
 *  (3) a credit that was used and whose Seal failed or was not heard of is given back (Skip) before
 *      the next one is looked for: else ckptd would wait for ever for this rank to use it.
 *
 *  (4) one call at a time: a second thread's is refused before it looks at anything (`use`).
 *
 * All on the caller's thread, except the copy of overlap.c, what mapping.c has its thread do, and
 * the workers of placer.c, which see only what they are given.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <sys/types.h>

#include "base/ids.h"
#include "client/beat.h"
#include "client/clock.h"
#include "client/device.h"
#include "client/environment.h"
#include "client/error.h"
#include "client/pace.h"
#include "client/request.h"
#include "client/slots.h"
#include "model/declaration.h"
#include "model/table.h"
#include "proto/origin.h"
#include "proto/session_page.h"

#define SLOTS_MAX	CONN_FDS_MAX
#define BLOBS_MAX	1024u     /* in one save */
#define BLOB_NAMES_MAX	(56u << 10) /* bytes of their names together: they go in one message */
#define BLOB_BYTES_DEFAULT (1u << 20)
#define TRIES_MAX	16
/* What ckptd answers at once is waited for so long, whatever time the call has. */
#define SILENT_MS	5000

/* What a save needs to know of one declared shard, by declared index. */
struct bound {
	uint64_t bytes, image_offset;
	uint32_t sorted; /* its index in the declaration */
	uint16_t dtype;
	uint8_t ndim;
	bool flat;
};

/* Shards in declared order, and the bytes that say so: what a handle declares once, or what one
 * ckpt_stored_read() wants. */
struct wanted {
	struct declaration_builder *builder; /* until it ends, then the rest */
	uint32_t n_shards;
	struct bound *shards;
	uint64_t bytes; /* of all shards */
	void *declaration;
	size_t declaration_len;
	struct declaration view;
};

/* A save in its course; one at a time. */
struct save {
	uint64_t step, epoch, credit, image_len;
	uint32_t try;
	uint32_t slot;       /* index in c->slots */
	uint64_t generation; /* of the slots */
	uint32_t n_blobs;    /* in c->places */
	int64_t timeout_ms;
	uint64_t started_ns, deadline;
	int skip_reason;   /* enum ckpt_skip_reason: why there is no credit */
	uint32_t skip_rank;
	bool falls; /* this rank has begun to save this step, or a later one, before */
};

struct step_tries {
	uint64_t step, epoch;
	uint32_t n;
};

struct overlap;
struct mapping;
struct asking;
struct loaded;

/* A ckptd that was lost and could not be joined again. */
struct away {
	uint64_t since_ns; /* 0: it is there, as far as is known */
	uint64_t next_ns;  /* calls that do not wait try no sooner; 0: none has failed yet */
	uint64_t pause_ms; /* between the last two tries */
	uint64_t device, inode, changed_ns; /* of its socket at the last try; 0: there was none */
	bool refused;                       /* by the last try, at once */
	char why[120];                      /* the last try failed */
};

/* What a handle is in. */
enum use {
	USE_NONE,
	USE_CALL,          /* a call */
	USE_CALL_CLOSE,    /* a call, at whose end it is closed, */
	USE_CALL_ABANDON,  /* or abandoned */
};

struct ckpt {
	_Atomic uint32_t use; /* enum use */
	pid_t pid;
	struct identity who;
	const char *socket;   /* of who.sockets: where ckptd answered; before that, the first */
	struct interrupt interrupt; /* of who.interrupted */
	struct requests rq;

	/* Session */
	bool joined;          /* ckptd has answered an open */
	bool looks;           /* without a rank: no page, no declaration, no saves */
	bool joining;         /* inside session.c: a loss is not answered by another reconnect */
	bool patient;         /* this call may wait for ckptd as long as its deadline allows */
	struct away away;
	bool rejoined;        /* CKPT_RECONNECTED is to be said */
	uint64_t epoch;       /* opened or loaded in */
	struct origin origin; /* of its state, in it */
	bool noted;           /* CKPT_NOTED is to be said */
	char note[ERR_TEXT_MAX]; /* what ckptd has said with a save; empty: nothing */
	struct geometry geometry;
	const struct session_page *page; /* NULL: it only looks */

	struct wanted own; /* the declaration */
	struct digest digest;
	bool declared;           /* ckptd has it */

	/* Slots */
	bool prepared;           /* there were some */
	bool slots_said;         /* ckptd has filled and sealed them, or will */
	uint32_t slots_later;    /* the last ones, that it had not filled when it last answered */
	struct asking *asking;   /* for slots, or that they be sealed */
	struct mapping *taken;   /* where slots came from and go to; the thread populates it */
	struct mapping *retired; /* for the thread to unmap */
	uint64_t blob_bytes;  /* asked for */
	uint64_t slot_bytes;
	struct slot_map slots[SLOTS_MAX];
	uint32_t n_slots;
	uint64_t generation;  /* rises when slots are replaced (2) */
	uint64_t credit_used; /* the newest (1) */
	struct devices *devices;
	uint64_t pin_tried;   /* for slots of this generation */

	/* Saving */
	struct save unsettled; /* credit != 0: see (3) */
	bool waited;           /* a save has waited for its first credit, or has had one */
	uint64_t sealed_step;  /* the newest, of sealed_epoch; that is 0: none */
	uint64_t sealed_epoch;
	struct step_tries tries[TRIES_MAX];
	uint32_t next_try;
	Ckpt__BlobPlace *places;      /* BLOBS_MAX, and pointers to them for the message */
	Ckpt__BlobPlace **place_list;
	char *blob_names;             /* BLOB_NAMES_MAX */
	struct blob_entry *blobs;     /* BLOBS_MAX */
	struct pace_kept pace;        /* of loads: pace.c */
	struct overlap *overlap;

	struct beating *beat;         /* steps and phases */
	struct loaded *loaded;        /* of the last load: problems and blobs */
	struct ckpt_stats stats;
};

/* ---- handle.c ---- */
/*
 * First of every call: -EINVAL without a handle, -EPERM in a forked child, CKPT_ESTATE while
 * another thread is in a call. What has entered leaves, whatever becomes of it.
 */
MUST_CHECK int call_enter(struct ckpt *c, struct err *e);
/* Last of every call: keeps the error, or adds status bits that are still to be said. c may be
 * gone then: another thread may have closed it meanwhile. */
int call_leave(struct ckpt *c, const char *call, int r, const struct err *e);
/* The same for a call whose result carries no bits. */
int call_leave_plain(struct ckpt *c, const char *call, int r, const struct err *e);
/* For what never changes after ckpt_open(): any thread may ask. */
MUST_CHECK int call_look(const struct ckpt *c, struct err *e);
/* For what only a rank does: CKPT_ESTATE where the handle only looks. */
MUST_CHECK int call_as_rank(const struct ckpt *c, struct err *e);
/* Why call_take() did not: CKPT_ESTATE. */
int call_refuse(const struct ckpt *c, struct err *e);
/* Another thread has ended the handle meanwhile. */
void call_release_ended(struct ckpt *c, uint32_t was);

/* The part of call_enter() that the calls of beat.c share, which know by other means whether this
 * is a forked child. Inline: a beat takes some 100 ns. */
MUST_CHECK static inline bool call_take(struct ckpt *c)
{
	uint32_t free = USE_NONE;

	return atomic_compare_exchange_strong_explicit(&c->use, &free, USE_CALL,
						       memory_order_acquire, memory_order_relaxed);
}
static inline void call_release(struct ckpt *c)
{
	uint32_t was = USE_CALL;

	if (!atomic_compare_exchange_strong_explicit(&c->use, &was, USE_NONE, memory_order_release,
						     memory_order_acquire))
		call_release_ended(c, was);
}
/* -EINVAL: it is neither a number of milliseconds nor CKPT_FOREVER or CKPT_DEFAULT_TIMEOUT. */
MUST_CHECK int timeout_check(int64_t timeout_ms, struct err *e);
/* The caller's timeout as a deadline. */
uint64_t call_deadline(const struct ckpt *c, int64_t timeout_ms);
/* It has passed, or the caller's hook has ended the call: either way nothing more is waited for. */
static inline bool call_is_over(const struct ckpt *c, uint64_t deadline)
{
	return c->interrupt.came || clock_ns() >= deadline;
}

/* ---- session.c ---- */
MUST_CHECK int session_open(struct ckpt *c, struct err *e);
/*
 * Joins again if the channel is down. A patient call waits for ckptd; of the others the first after
 * a loss does, at most a second, and further ones fail at once, with a quick try every second to
 * ten seconds or when there is another socket. Never CKPT_ETIMEDOUT or -EAGAIN.
 */
MUST_CHECK int session_ensure(struct ckpt *c, uint64_t deadline, struct err *e);
/*
 * Sends q and waits for its answer, over a reconnect if need be; q->err has the sentence. 0, the
 * reply's code, CKPT_ETIMEDOUT, CKPT_EUNAVAILABLE.
 */
MUST_CHECK int session_call(struct ckpt *c, struct request *q, uint64_t deadline);
/* The same for a request that speaks of slots of that generation (2). */
MUST_CHECK int session_call_slots(struct ckpt *c, struct request *q, uint64_t generation,
				  uint64_t deadline);
/*
 * True where ckptd has said nothing at all to what was asked within a second, or `ms`, and now: it
 * is stopped or hangs. From here on it is away, until it answers a try of session_ensure().
 */
bool session_is_silent(struct ckpt *c, uint64_t ms);
void session_close(struct ckpt *c, bool failed);

/* ---- declare.c ---- */
/* Adds one shard; returns its index. */
MUST_CHECK int wanted_add(struct wanted *w, const struct ckpt_tensor *t, struct err *e);
/* Ends the builder. May be repeated. */
MUST_CHECK int wanted_finish(struct wanted *w, struct err *e);
void wanted_fini(struct wanted *w);
MUST_CHECK int declare_finish(struct ckpt *c, struct err *e);
MUST_CHECK int declare_send(struct ckpt *c, uint64_t deadline, struct err *e);
MUST_CHECK int bindings_check(const struct wanted *w, const struct ckpt_binding *b, size_t n,
			      struct err *e);
/* The declared shard, for a sentence or its box. */
void declared_shard(const struct wanted *w, uint32_t i, struct shard *ret);

/* ---- list.c ---- */
void info_from(const Ckpt__CheckpointInfo *m, struct ckpt_info *ret);

/* ---- prepare.c ---- */
/* Ends the declaration and sends it, by the deadline; no slots are asked for. */
MUST_CHECK int prepare_begin(struct ckpt *c, uint64_t deadline, struct err *e);
/*
 * Slots, the first or for those that were lost with ckptd's memory; the library's thread populates
 * them meanwhile. 1: there are slots, and the one that there is a credit for is populated; 0: not
 * by `until`, or an error. What was begun goes on between calls. deadline: of a reconnect.
 */
MUST_CHECK int prepare_slots(struct ckpt *c, uint64_t until, uint64_t deadline, struct err *e);
/* Behind a load: asks for slots, and waits some milliseconds for ckptd to hand them over. What
 * goes wrong the first save finds out again, and says it. */
void prepare_ask(struct ckpt *c);
bool prepare_has_slots(const struct ckpt *c);
/* Their numbers; returns how many. */
uint32_t prepare_numbers(const struct ckpt *c, uint32_t numbers[SLOTS_MAX]);
/* Waits for nobody: the thread unmaps them. */
void prepare_drop_slots(struct ckpt *c);
/* Before the end of the thread: it need not finish what nobody will use. */
void prepare_stop(struct ckpt *c);
void prepare_fini(struct ckpt *c);
uint64_t blobs_offset(const struct ckpt *c); /* where the image's blobs begin */

/* ---- save.c ---- */
/* Everything before the copy: checks, credit, blobs. CKPT_SKIPPED (> 0): there is no credit. */
MUST_CHECK int save_start(struct ckpt *c, const struct ckpt_save_args *a, struct save *s,
			  uint64_t deadline, struct err *e);
MUST_CHECK int save_seal(struct ckpt *c, struct save *s, uint64_t deadline, struct err *e);
/* The copy failed: gives the credit back and says why. */
void save_give_up(struct ckpt *c, struct save *s, const char *reason, uint64_t deadline);
/* Last of every save: counts it, says to the caller why it was skipped, to ckptd that it failed. */
void save_end(struct ckpt *c, const char *call, const struct save *s, int result, uint64_t bytes,
	      struct err *e);
/* Members beyond what the caller was compiled with are absent. */
MUST_CHECK int save_args_known(const struct ckpt_save_args *a, struct ckpt_save_args *ret,
			       struct err *e);

/* ---- overlap.c ---- */
MUST_CHECK int overlap_init(struct ckpt *c, struct err *e);
void overlap_fini(struct ckpt *c);
bool overlap_busy(const struct ckpt *c); /* between begin and fence */
/* Refuses (CKPT_ESTATE) what cannot be done between begin and fence. */
MUST_CHECK int overlap_ended(const struct ckpt *c, struct err *e);
/* True once the library's thread does nothing, false at the deadline or where the caller's hook
 * ends the call. */
bool overlap_quiesce(struct ckpt *c, uint64_t deadline);
/* Waits until it does nothing, whatever the hook says. */
void overlap_finish(struct ckpt *c);
/* Lets the thread, which is there and runs nothing, do this. */
void overlap_run(struct ckpt *c, void (*run)(void *arg), void *arg);
/*
 * Lets the thread do these steps while it runs nothing: each returns how long it is to be paused,
 * or OVERLAP_OVER. In place of those before.
 */
#define OVERLAP_OVER UINT64_MAX
typedef uint64_t overlap_step_fn(void *arg);
void overlap_steps(struct ckpt *c, overlap_step_fn *step, void *arg);
/* No further one begins; the last may end later. */
void overlap_steps_end(struct ckpt *c);
/* Waits until a step has made it true, the deadline passes or the caller's hook ends the call. */
bool overlap_await(struct ckpt *c, bool (*there)(const void *arg), const void *arg,
		   uint64_t deadline);

#endif
