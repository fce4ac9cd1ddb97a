/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h - the client side of ckptd: save, wait for, list and load the state of one rank.
 *
 * Rules for every function
 *   Result    an int: >= 0 is success (a set of CKPT_* status bits, or a count where said so),
 *             negative is an error: -errno or one of CKPT_E*. ckpt_last_error() has the sentence.
 *   Time      every timeout is in milliseconds; CKPT_FOREVER waits without bound, 0 asks only: the
 *             call waits for nothing but ckptd's answer, which comes at once, and a second at most
 *             where it does not.
 *             No call waits for another rank or node longer than its timeout (I13).
 *   Threads   one handle is used by one thread at a time; different handles are independent. A
 *             call while another thread is in one of the same handle returns CKPT_ESTATE and does
 *             nothing; ckpt_close() then takes effect when that call ends.
 *   Process   the library never prints, exits, installs signal handlers or changes the
 *             environment. Calls in a forked child return -EPERM: open a handle of its own there.
 *   Structs   the first member, size, is sizeof the struct; members added later are then known
 *             to be absent. Everything the caller passes is copied before the call returns,
 *             except memory named in a struct ckpt_binding, whose rules stand there.
 *   Shapes    are in elements, offsets too; sizes are in bytes where the name says bytes.
 *             Order is row-major (C order): the last dimension is contiguous.
 */
#ifndef CKPT_H
#define CKPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_API __attribute__((visibility("default")))

struct ckpt; /* one rank's connection to ckptd */

#define CKPT_NDIM_MAX  8
#define CKPT_NAME_MAX  1023                /* bytes in a tensor's or blob's name */
#define CKPT_JOB_MAX   64                  /* bytes in a job's name: [A-Za-z0-9._-], no dot first */
#define CKPT_FOREVER   ((int64_t)-1)
#define CKPT_DEFAULT_TIMEOUT ((int64_t)-2) /* CKPT_TIMEOUT of the environment, else 60 s */
/*
 * As step: the base of the current epoch, which is the newest that could be restored when the
 * epoch was opened. It is the same for all ranks, and never what was saved since: to go back to
 * that, name its step. In a handle that only looks (CKPT_EXISTING): the newest that can be restored
 * now.
 */
#define CKPT_LATEST    UINT64_MAX
#define CKPT_FROM_ENV  (-1)                /* as rank or world: RANK, SLURM_PROCID, ... */

/* Status bits of calls that succeeded. */
enum ckpt_status {
	CKPT_OK = 0,
	CKPT_SKIPPED = 1,     /* no credit: this rank did not save, nothing was copied */
	CKPT_RECONNECTED = 2, /* ckptd had been lost and is back; said once */
	CKPT_NOTHING = 4,     /* of CKPT_LATEST: the epoch has no base, and none was lost */
	CKPT_PARTIAL = 8,     /* lenient load: some tensors were missing or did not match */
	CKPT_FELL_BACK =
		16,      /* the newest cannot be restored: an older checkpoint was loaded instead */
	CKPT_NOTED = 32, /* a save, once: ckpt_note() says what is worth knowing of it */
};

/*
 * Errors of our own. One list gives the enum, ckpt_strerror() and the table of ckpt_errors(7).
 * X(name, value, text)
 */
#define CKPT_ERRORS(X)                                                                             \
	X(CKPT_ECORRUPT, -1001, "data does not match its digest")                                  \
	X(CKPT_ESTALE, -1002, "record, term or attempt is out of date")                            \
	X(CKPT_EEPOCH, -1003, "the job is in a newer epoch: load, then go on")                     \
	X(CKPT_EUNAVAILABLE, -1004, "ckptd cannot be reached")                                     \
	X(CKPT_ESUPERSEDED, -1005, "a newer checkpoint overtook this one")                         \
	X(CKPT_EABORTED, -1006, "the attempt was aborted")                                         \
	X(CKPT_ETORN, -1007, "tensors changed while they were copied")                             \
	X(CKPT_EMISMATCH, -1008, "tensors do not match what is stored")                            \
	X(CKPT_ENOSPACE, -1009, "not enough memory or disk was reserved")                          \
	X(CKPT_EDENIED, -1010, "not allowed for this user or token")                               \
	X(CKPT_EPROTO, -1011, "message or file is malformed")                                      \
	X(CKPT_EVERSION, -1012, "version or feature is not supported")                             \
	X(CKPT_ETIMEDOUT, -1013, "the deadline passed")                                            \
	X(CKPT_ENOTFOUND, -1014, "no such job, checkpoint or tensor")                              \
	X(CKPT_ESTATE, -1015, "call is not allowed in this state")                                 \
	X(CKPT_ELOST, -1016, "the bytes of this checkpoint are lost")                              \
	X(CKPT_ENODEVICE, -1017, "device memory cannot be used here")                              \
	X(CKPT_EIO, -1018, "input or output failed for good")                                      \
	X(CKPT_ESTOPPED, -1019, "ckptd stopped the job: its state contradicts itself")

enum ckpt_error {
#define X(name, value, text) name = value,
	CKPT_ERRORS(X)
#undef X
};

/* Element types: X(name, value in formats, bits of one element, name in text). */
#define CKPT_DTYPES(X)                                                                             \
	X(CKPT_BOOL, 1, 8, "bool")                                                                 \
	X(CKPT_U8, 2, 8, "u8")                                                                     \
	X(CKPT_I8, 3, 8, "i8")                                                                     \
	X(CKPT_U16, 4, 16, "u16")                                                                  \
	X(CKPT_I16, 5, 16, "i16")                                                                  \
	X(CKPT_U32, 6, 32, "u32")                                                                  \
	X(CKPT_I32, 7, 32, "i32")                                                                  \
	X(CKPT_U64, 8, 64, "u64")                                                                  \
	X(CKPT_I64, 9, 64, "i64")                                                                  \
	X(CKPT_F16, 10, 16, "f16")                                                                 \
	X(CKPT_BF16, 11, 16, "bf16")                                                               \
	X(CKPT_F32, 12, 32, "f32")                                                                 \
	X(CKPT_F64, 13, 64, "f64")                                                                 \
	X(CKPT_F8_E4M3, 14, 8, "f8_e4m3")                                                          \
	X(CKPT_F8_E5M2, 15, 8, "f8_e5m2")                                                          \
	X(CKPT_F8_E4M3FNUZ, 16, 8, "f8_e4m3fnuz")                                                  \
	X(CKPT_F8_E5M2FNUZ, 17, 8, "f8_e5m2fnuz")                                                  \
	X(CKPT_F8_E8M0, 18, 8, "f8_e8m0")                                                          \
	X(CKPT_C64, 19, 64, "c64")                                                                 \
	X(CKPT_C128, 20, 128, "c128")

enum ckpt_dtype {
#define X(name, value, bits, text) name = value,
	CKPT_DTYPES(X)
#undef X
};

/* How far a checkpoint has come; see ckpt_wait(). */
enum ckpt_state {
	CKPT_SEALED = 1,    /* every rank said that its bytes are final */
	CKPT_COMMITTED = 2, /* it survives the death of any process */
	CKPT_DURABLE = 3,   /* it survives loss of power */
};

/* Where loaded bytes came from. */
enum ckpt_tier { CKPT_TIER_NONE = 0, CKPT_TIER_MEMORY = 1, CKPT_TIER_DISK = 2 };

/* ---- Open and close ---- */

struct ckpt_options {
	size_t size;
	const char *run_id;   /* equal on all ranks of one launch; NULL: CKPT_RUN_ID, ... */
	const char *socket;   /* path of ckptd's socket; NULL: CKPT_SOCKET, then the usual places */
	const char *token;    /* hex; needed only where the uid differs; NULL: CKPT_TOKEN */
	int64_t connect_timeout_ms; /* of ckpt_open(); 0: one try, or CKPT_CONNECT_TIMEOUT s */
	int64_t timeout_ms;   /* of calls with CKPT_DEFAULT_TIMEOUT; 0: CKPT_TIMEOUT or 60 s */
	unsigned flags;       /* CKPT_EXISTING, CKPT_TRAINS, CKPT_OWN_STATE */
	int (*interrupted)(void *arg); /* ends the handle's waits, see below; NULL: nothing does */
	void *interrupted_arg;         /* is given to it, and stays the caller's */
};
/*
 * interrupted: for a host that handles signals outside of handlers, as an interpreter does. A call
 * that waits calls it after each 200 ms, and when a signal handler has run on its thread; where it
 * returns other than 0 the call ends as if its timeout were over, with the same result, and so does
 * ckpt_open(). A call that does not wait so long does not call it. It is called on the thread that
 * is in the call, at any time until ckpt_close() has returned, and must not call with this handle:
 * CKPT_ESTATE. Without it a signal ends no call. A copy of tensors is not ended by it.
 */
/*
 * CKPT_EXISTING makes no job: CKPT_ENOTFOUND where there is none of this name. Alone it is for a
 * process that looks: it takes no rank, whatever rank, world and run id say, opens no epoch, and
 * ranks that train go on. ckpt_list(), ckpt_wait() and ckpt_stored_open() work; what only a rank
 * does (prepare, save, skip, load, CKPT_RESUME) is CKPT_ESTATE. With CKPT_TRAINS it is a rank.
 */
#define CKPT_EXISTING 1u
#define CKPT_TRAINS   2u
/* The state of this rank does not come from ckpt_load(): it may save without a load, though other
 * ranks load, or the job has checkpoints. */
#define CKPT_OWN_STATE 4u

/*
 * Opens job (NULL: CKPT_JOB) as rank of world; CKPT_FROM_ENV: as the environment says. Where
 * neither is given and no launcher has set anything, it is rank 0 of 1, and ckpt_note() says so.
 * The first open of a name by a user makes the job. opt may be NULL. *ret is untouched on failure;
 * free it with ckpt_close().
 */
CKPT_API int ckpt_open(const char *job, int rank, int world, const struct ckpt_options *opt,
		       struct ckpt **ret);
/* Ends the session; sealed snapshots live on in ckptd. NULL is allowed. */
CKPT_API void ckpt_close(struct ckpt *c);
/*
 * The same for a trainer that fails and is about to end: without a goodbye. ckptd's failure
 * detector tells how its process ends, unless that is with status 0, or it opens the job again
 * before.
 */
CKPT_API void ckpt_abandon(struct ckpt *c);

CKPT_API int ckpt_rank(const struct ckpt *c);
CKPT_API int ckpt_world(const struct ckpt *c);
/* What is worth knowing of how it was opened, or of the last call that returned CKPT_NOTED, a
 * sentence for people; "": nothing. Valid until the next call on the handle. */
CKPT_API const char *ckpt_note(const struct ckpt *c);

/* ---- Declare: what the state is, once ---- */

#define CKPT_FLAT    1u /* start and stop are valid: a flat range of the box */
#define CKPT_TRAINED 2u /* expected to change from step to step (stale-snapshot alarm) */

struct ckpt_tensor {
	size_t size;
	const char *name;             /* fully qualified, UTF-8, unique per rank and box */
	int dtype;                    /* enum ckpt_dtype */
	int ndim;                     /* 0..CKPT_NDIM_MAX; 0 is a scalar */
	const uint64_t *global_shape; /* ndim extents of the whole tensor, elements */
	const uint64_t *offset;       /* ndim; NULL: zeros */
	const uint64_t *shape;        /* ndim extents of this rank's box; NULL: the whole tensor */
	uint64_t start, stop;         /* CKPT_FLAT: elements [start, stop) of the box, row-major */
	unsigned flags;
};

/*
 * Adds one shard to the declaration; returns its index, 0 for the first: bindings are given in
 * this order. Not allowed after ckpt_prepare().
 */
CKPT_API int ckpt_declare(struct ckpt *c, const struct ckpt_tensor *t);

/*
 * Ends the declaration and takes, maps and populates the slots, with room for max_blob_bytes of
 * blobs in each save. Refuses with CKPT_ENOSPACE, naming what is missing, before training starts.
 * Takes about a second per GiB. Without it ckpt_load() asks for slots, with 1 MiB, when it has
 * placed everything, and they are made while the trainer goes on; else the first save asks. That
 * says what is missing, and waits for its slot within its timeout.
 */
CKPT_API int ckpt_prepare(struct ckpt *c, uint64_t max_blob_bytes);

/* ---- Bind: where the bytes are now ---- */

#define CKPT_HOST (-1)

/*
 * One per declared tensor, in declared order, taken from the live objects at every call. The
 * memory must stay valid, and for a save unchanged, until the call (with ckpt_save_begin() the
 * fence) returns; a mapped file must keep its length as long, or the copy ends the process by
 * SIGBUS, as any other access would. In a load no two elements may be in one place: -EINVAL. Two
 * bindings of the very same memory may (tied weights): CKPT_EMISMATCH where what is stored for them
 * differs.
 *
 * It has no size, as an element of an array: programs that were built before ndim set it to 0, and
 * their strides are refused.
 */
struct ckpt_binding {
	void *ptr;              /* first element; NULL only if the shard has no elements */
	int device;             /* CKPT_HOST or a CUDA device ordinal */
	uint16_t dtype;         /* must equal the declared dtype */
	uint16_t ndim;          /* of strides, if they are given: must equal the declared ndim */
	uint64_t bytes;         /* bytes of the shard's elements; must equal the declared ones */
	const int64_t *strides; /* NULL: contiguous; else ndim strides in bytes (boxes only) */
};

/* The names and places of one save's blobs fit 56 KiB: each takes its name and at most 41 bytes.
 * For their data ckpt_prepare() makes room. */
struct ckpt_blob {
	const char *name;
	const void *data;
	uint64_t bytes;
};

/* ---- Save ---- */

#define CKPT_WAIT_CREDIT  1u /* wait (within the timeout) for a credit instead of skipping */
#define CKPT_FULL_COMPARE 2u /* ckpt_save_fence(): compare every byte of the copy, too */

struct ckpt_save_args {
	size_t size;
	uint64_t step;                     /* rises strictly within an epoch */
	const struct ckpt_binding *tensors;
	size_t n_tensors;
	const struct ckpt_blob *blobs;
	size_t n_blobs;
	int64_t timeout_ms;                /* bound of the whole call; CKPT_DEFAULT_TIMEOUT */
	unsigned flags;
};

/*
 * Why a save was skipped. X(name, value, word in JSON)
 */
#define CKPT_SKIP_REASONS(X)                                                                       \
	X(CKPT_SKIP_NONE, 0, "none")                                                               \
	X(CKPT_SKIP_CALLER, 1, "caller")             /* ckpt_skip() */                             \
	X(CKPT_SKIP_SLOTS, 2, "slots")               /* skip_rank's slots are being prepared */    \
	X(CKPT_SKIP_PASSED, 3, "passed")             /* a rank is past this step */                \
	X(CKPT_SKIP_OPENING, 4, "opening")           /* ckptd opens the epoch, or stops */         \
	X(CKPT_SKIP_MEMORY, 5, "memory")             /* ckptd cannot describe another save */      \
	X(CKPT_SKIP_ABSENT, 6, "absent")             /* not all ranks are connected */             \
	X(CKPT_SKIP_UNPREPARED, 7, "unprepared")     /* skip_rank has no slots yet */              \
	X(CKPT_SKIP_NOT_LOADED, 8, "not-loaded")     /* skip_rank has not entered the epoch */     \
	X(CKPT_SKIP_FULL, 9, "full")                 /* skip_rank has no free slot */              \
	X(CKPT_SKIP_BEHIND, 10, "behind")            /* skip_rank has not saved the last one */    \
	X(CKPT_SKIP_FAILED, 11, "failed")            /* to ckptd only: the save failed, */         \
	X(CKPT_SKIP_REFUSED, 12, "refused")          /* or failed before it was begun */          \
	X(CKPT_SKIP_PENDING, 13, "pending")          /* ckptd gives the next credit soon */        \
	X(CKPT_SKIP_LEFT, 14, "left")                /* skip_rank has ended: start the job again */

enum ckpt_skip_reason {
#define X(name, value, word) name = value,
	CKPT_SKIP_REASONS(X)
#undef X
};
#define CKPT_SKIP_REASONS_MAX 16

/*
 * Copies this rank's state and seals it: when it returns tensors may change. Returns CKPT_OK,
 * or CKPT_SKIPPED when there was no credit: ckpt_last_error() and ckpt_stats() say why. The first
 * save of a handle waits, within its timeout, for its memory and for a credit. CKPT_EEPOCH: the
 * job went on without this rank's knowledge: load first. A failed save leaves everything that was
 * saved before as it was.
 *
 * CKPT_ETIMEDOUT: ckptd said nothing, for 5 s at most, or 1 s where timeout_ms is 0. It is away
 * then: further saves fail at once with CKPT_EUNAVAILABLE until it answers. Whether the step was
 * sealed is not known: ckpt_list() and ckpt_wait() say later.
 */
CKPT_API int ckpt_save(struct ckpt *c, const struct ckpt_save_args *args);

/*
 * The same, overlapped: begin returns at once, the copy goes on in a thread of the library, fence
 * ends it and seals. Tensors must not change in between. Fence drops the snapshot with CKPT_ETORN
 * if samples of up to 64 tensors are, in memory or in the copy, not what they were at begin, and
 * with CKPT_FULL_COMPARE also if any byte of memory differs from the copy. Outside of the samples a
 * change that was made before the thread came to it is copied, and not found.
 */
CKPT_API int ckpt_save_begin(struct ckpt *c, const struct ckpt_save_args *args);
CKPT_API int ckpt_save_fence(struct ckpt *c, unsigned flags);

/*
 * Says that this rank does not save step: in place of a save that the caller cannot make, so that
 * the others' attempt ends now and the next try of the same step counts alike on all ranks. reason
 * (at most 127 bytes are kept) goes into the job's log; NULL is allowed.
 */
CKPT_API int ckpt_skip(struct ckpt *c, uint64_t step, const char *reason);

/*
 * Waits until the checkpoint of step in the current epoch has reached what. Waiting for DURABLE
 * also asks for it to be persisted. CKPT_EABORTED: it never will. CKPT_ESUPERSEDED: a newer one
 * is being persisted instead; *ret_newer (may be NULL) is its step.
 */
CKPT_API int ckpt_wait(struct ckpt *c, uint64_t step, enum ckpt_state what, int64_t timeout_ms,
		       uint64_t *ret_newer);

/* ---- List and load ---- */

struct ckpt_info {
	uint64_t step;
	uint64_t bytes;       /* of all ranks */
	uint8_t attempt[16];
	uint64_t epoch;
	uint64_t time_ns;     /* wall clock of the commit, a label only */
	int memory, disk;     /* 1: a whole copy is in that tier */
	int pinned, latest;   /* latest: the base of the current epoch */
	int world;
};

/*
 * Fills up to n infos, newest first, and returns how many there are in all (may exceed n).
 */
CKPT_API int ckpt_list(struct ckpt *c, struct ckpt_info *infos, size_t n);

#define CKPT_LENIENT 1u /* load what matches; ckpt_problem() names the rest */

/* How far a checkpoint is trusted; CKPT_MIN_TRUST in the environment has the word. */
enum ckpt_trust {
	CKPT_TRUST_LATEST = 0,   /* "latest": it is committed */
	CKPT_TRUST_COMPLETE = 1, /* "complete": every copy was read again, and matched */
	CKPT_TRUST_VERIFIED = 2, /* "verified": and the job went on from it, healthily */
};

struct ckpt_load_args {
	size_t size;
	uint64_t step;                       /* or CKPT_LATEST */
	const struct ckpt_binding *tensors;  /* what was declared is what is wanted */
	size_t n_tensors;
	int64_t timeout_ms;
	unsigned flags;
	unsigned unused;    /* not looked at: older programs leave anything here */
	unsigned min_trust; /* enum ckpt_trust: this at least, and at least CKPT_MIN_TRUST */
};

struct ckpt_loaded {
	size_t size;
	uint64_t step;
	uint8_t attempt[16];
	int tier;             /* enum ckpt_tier; the slowest one used */
	uint64_t bytes;       /* placed */
	uint64_t bytes_read;  /* read from the tier, digests verified over all of them */
	uint64_t fell_back_from; /* CKPT_FELL_BACK: the newer step that could not be restored */
};

/*
 * Fills the bound memory from a checkpoint saved under any layout, verifying every leaf it
 * touches. On an error the bound memory holds no promise. Missing, extra or mismatched tensors
 * fail a strict load before a byte is written. With CKPT_LATEST it returns CKPT_NOTHING when there
 * was no checkpoint when the epoch began (those that were saved in it are loaded by their steps),
 * CKPT_ELOST when there were and none can be restored: the rank may save then.
 *
 * With min_trust, CKPT_LATEST goes back to the newest that is trusted as much, if the base of the
 * epoch is not: in a new epoch, for all ranks, of which those that had loaded the other one must
 * load again. So the ranks of a job need not ask alike: the highest that one asks counts for all.
 * CKPT_ENOTFOUND: there are checkpoints, and none that is.
 */
CKPT_API int ckpt_load(struct ckpt *c, const struct ckpt_load_args *args, struct ckpt_loaded *ret);

/*
 * The i-th sentence about the last load (missing, extra, mismatched); NULL past the end. The last
 * one says how many more there are where not all are listed.
 */
CKPT_API const char *ckpt_problem(struct ckpt *c, size_t i);

/*
 * A blob of this rank from the last load; valid until the next load or close. Returns
 * CKPT_ENOTFOUND when there is none of that name. ckpt_blob_at() walks them by index.
 */
CKPT_API int ckpt_blob_get(struct ckpt *c, const char *name, const void **ret, uint64_t *ret_bytes);
CKPT_API int ckpt_blob_at(struct ckpt *c, size_t i, struct ckpt_blob *ret);

/* ---- What a checkpoint holds, and reading any part of it ---- */

struct ckpt_stored; /* one checkpoint, opened for looking */

/* A shard as one rank stored it. */
struct ckpt_stored_shard {
	size_t size;
	int rank;
	const char *name; /* valid until the next call with the same ckpt_stored */
	int dtype;
	int ndim;
	uint64_t global_shape[CKPT_NDIM_MAX], offset[CKPT_NDIM_MAX], shape[CKPT_NDIM_MAX];
	uint64_t start, stop; /* CKPT_FLAT */
	unsigned flags;
	uint64_t bytes;
};

/* A blob of one rank: as it is stored (data is NULL), or where it is to go. */
struct ckpt_stored_blob {
	int rank;
	const char *name; /* as in struct ckpt_stored_shard */
	void *data;
	uint64_t bytes;
};

/*
 * Opens the checkpoint of step, or CKPT_LATEST, for looking: all shards and blobs of all ranks,
 * from memory or disk, without reading them. Nothing need be declared, and nothing of the handle's
 * declaration or epoch changes. Returns CKPT_NOTHING, *ret untouched, where ckpt_load() would;
 * CKPT_EVERSION where ckptd is older than this call. It uses c, on c's thread, and ends
 * with ckpt_stored_close() before c is closed.
 */
CKPT_API int ckpt_stored_open(struct ckpt *c, uint64_t step, int64_t timeout_ms,
			      struct ckpt_stored **ret);
CKPT_API void ckpt_stored_close(struct ckpt_stored *s); /* NULL is allowed */

CKPT_API int ckpt_stored_info(const struct ckpt_stored *s, struct ckpt_info *ret);
/*
 * The i-th shard or blob: ranks in order, within a rank by name and offset. CKPT_ENOTFOUND past
 * the end. ret->size is set before.
 */
CKPT_API int ckpt_stored_shard_at(struct ckpt_stored *s, uint64_t i, struct ckpt_stored_shard *ret);
CKPT_API int ckpt_stored_blob_at(struct ckpt_stored *s, uint64_t i, struct ckpt_stored_blob *ret);

#define CKPT_RESUME 2u /* the rank goes on from here: it may save in the current epoch */

struct ckpt_read_args {
	size_t size;
	const struct ckpt_tensor *wants;    /* n_tensors boxes or flat ranges */
	const struct ckpt_binding *tensors; /* where the i-th goes */
	size_t n_tensors;
	const struct ckpt_stored_blob *blobs; /* by rank and name, into data, of bytes */
	size_t n_blobs;
	int64_t timeout_ms;
	unsigned flags; /* CKPT_LENIENT, CKPT_RESUME */
};

/*
 * Reads parts of that very checkpoint, in one go, verified, like ckpt_load(): any boxes or flat
 * ranges of its tensors, which must not overlap in one call, whatever the layout they are stored
 * in, and any blobs of any ranks. What is stored and not wanted is no problem. CKPT_ELOST: no good
 * copy of it is left; CKPT_ENOTFOUND: retention removed it meanwhile.
 */
CKPT_API int ckpt_stored_read(struct ckpt_stored *s, const struct ckpt_read_args *args,
			      struct ckpt_loaded *ret);

/* ---- Steps and phases: what ckptd's failure detector is told ---- */

/*
 * These calls are for every step: they write into memory that ckptd looks at, make no system call,
 * wait for nobody and take no lock. They work from ckpt_open() on; while ckptd is gone they go
 * nowhere, and succeed.
 */

#define CKPT_METRICS_MAX 8  /* metrics of the trainer's own, for one handle */
#define CKPT_WORD_MAX	 31 /* bytes of a metric's name, a role, a phase's `what` */
#define CKPT_PHASE_DEPTH 4  /* phases in one another */

/* Which values of a struct ckpt_beat are given. A value that is given may be NaN. */
#define CKPT_BEAT_LOSS	    1u
#define CKPT_BEAT_GRAD_NORM 2u
#define CKPT_BEAT_TOKENS    4u
#define CKPT_BEAT_METRIC(i) (0x100u << (i)) /* i: of ckpt_metric() */

struct ckpt_beat {
	size_t size;
	uint64_t step;  /* that this rank has finished */
	unsigned flags; /* CKPT_BEAT_* */
	uint64_t tokens; /* of this rank in this step */
	double loss, grad_norm;
	double metrics[CKPT_METRICS_MAX];
};

/* Says that a step is done, once for each. */
CKPT_API int ckpt_beat(struct ckpt *c, const struct ckpt_beat *b);
/* Registers a metric by name, or finds it: its index, 0 to CKPT_METRICS_MAX - 1. */
CKPT_API int ckpt_metric(struct ckpt *c, const char *name);

/*
 * Parts of a step, which tell who waits for whom, and long phases, in which no step is expected.
 * Where nothing is declared a rank is in CKPT_PHASE_STEP. ckpt_prepare(), saves, waits and loads
 * declare CHECKPOINT and LOAD themselves.
 */
enum ckpt_phase {
	CKPT_PHASE_STEP = 0,
	CKPT_PHASE_DATA = 1, /* waits for input */
	CKPT_PHASE_SYNC = 2, /* in a collective: waits for other ranks */
	CKPT_PHASE_OPTIMIZE = 3,
	/* long ones */
	CKPT_PHASE_CHECKPOINT = 4,
	CKPT_PHASE_LOAD = 5,
	CKPT_PHASE_EVALUATE = 6,
	CKPT_PHASE_COMPILE = 7, /* warm-up, autotuning, first steps */
	CKPT_PHASE_IDLE = 8,    /* on purpose */
	CKPT_PHASE_OTHER = 9,
};

/*
 * what: the trainer's word for a long phase, or NULL; phases of one word have one history of how
 * long they take. expected_ms: how long this one will, 0: not known. Every begin is followed by its
 * end; CKPT_ESTATE where more than CKPT_PHASE_DEPTH are begun, or none is to be ended.
 */
CKPT_API int ckpt_phase_begin(struct ckpt *c, enum ckpt_phase phase, const char *what,
			      int64_t expected_ms);
CKPT_API int ckpt_phase_end(struct ckpt *c);

/* Ranks that name the same role do the same work and are compared with each other; without a role
 * all ranks of the job are. */
CKPT_API int ckpt_role(struct ckpt *c, const char *role);

/*
 * 1: ckptd asks for a checkpoint at this step or before it; save now. 0: it does not. Asked at the
 * same step on all ranks the answer is the same on all. It is 1 until a save or ckpt_skip() of that
 * step or a later one.
 */
CKPT_API int ckpt_should_save(struct ckpt *c, uint64_t step);

/* ---- Foreign event loops ---- */

/* Poll this descriptor for reading and call ckpt_pump(): it reads what came and never waits. */
CKPT_API int ckpt_fd(struct ckpt *c);
CKPT_API int ckpt_pump(struct ckpt *c);

/* ---- Errors and counters ---- */

/*
 * The sentence about the last call of this thread that failed, or whose save was skipped (code
 * CKPT_SKIPPED); never NULL. *ret_code may be NULL.
 */
CKPT_API const char *ckpt_last_error(int *ret_code);
CKPT_API const char *ckpt_strerror(int code);
CKPT_API const char *ckpt_version(void);

struct ckpt_stats {
	size_t size;
	uint64_t saves, skipped, failed, reconnects; /* counts since open */
	uint64_t last_stall_ns;  /* time the last save kept the caller, ns */
	uint64_t last_bytes;     /* bytes it copied */
	uint64_t skipped_by[CKPT_SKIP_REASONS_MAX]; /* skipped, by enum ckpt_skip_reason */
	uint64_t skip_step;      /* the last step that was skipped, */
	int skip_reason;         /* why (CKPT_SKIP_NONE: none was skipped), */
	int skip_rank; /* and, for CKPT_SKIP_SLOTS, _LEFT, _UNPREPARED to _BEHIND, the rank */
	/* Steps that every rank has saved and that are not committed, as ckptd cannot write the
	 * job's log, and the first of them. They go on in memory alone. */
	uint64_t uncommitted, uncommitted_from;
	uint64_t sealed_step; /* the last that was saved (saves > 0), */
	uint64_t failed_step; /* and the last whose save failed (failed > 0) */
};
CKPT_API int ckpt_stats(const struct ckpt *c, struct ckpt_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
