/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hand.h - a rank that speaks the session's messages by hand to a host in the same process. It
 * shares no code with libckpt: what it reads back was placed by the plan's pieces alone, leaves
 * are not checked: tests compare all bytes themselves.
 *
 * Functions return 0, the code of ckptd's answer, or -errno; text says why.
 */
#ifndef TESTS_LIB_HAND_H
#define TESTS_LIB_HAND_H

#include "base/ids.h"
#include "model/tensor.h"
#include "tests/lib/host.h"

struct Ckpt__Request; /* of proto/session.pb-c.h */
struct Ckpt__Reply;
struct Ckpt__BlobPlace;

#define HAND_SHARDS_MAX 4
#define HAND_SLOTS_MAX 8
#define HAND_BLOB_MAX 4096
#define HAND_FDS_MAX    64
#define HAND_BASE_NONE UINT64_MAX

struct hand {
	struct host *host;
	int fd;
	uint64_t next_id;
	struct session_page *page;
	struct beat_page *beats; /* the one of its newest open; NULL: it was given none */
	uint8_t *slots[HAND_SLOTS_MAX];
	uint32_t numbers[HAND_SLOTS_MAX];
	size_t n_slots;
	uint64_t slot_bytes, epoch, base_step, used_credit, image_bytes;
	struct digest declaration;
	struct shard shards[HAND_SHARDS_MAX]; /* in declared order, with places in the image */
	uint32_t n_shards;
	uint32_t min_trust; /* of its loads */
	char text[ERR_TEXT_MAX];
};

struct hand_answer {
	struct Ckpt__Reply *reply; /* NULL: there is none */
	int fds[HAND_FDS_MAX];
	size_t n_fds;
};

struct hand_info {
	uint64_t step, epoch;
	struct attempt_id attempt;
	bool disk, pinned, latest;
};

struct hand_loaded {
	uint64_t step;
	uint32_t tier;
	uint8_t *shards[HAND_SHARDS_MAX]; /* of the caller, each with room for the declared bytes */
	uint8_t blob[HAND_BLOB_MAX];
	uint64_t blob_bytes;
};

MUST_CHECK int hand_connect(struct hand *k, struct host *h);
/* As a program that can do what these bits of Hello say. */
MUST_CHECK int hand_connect_as(struct hand *k, struct host *h, uint64_t features);
void hand_close(struct hand *k);
MUST_CHECK int hand_open(struct hand *k, const char *job, uint32_t rank, uint32_t world,
			 const char *run);
/* As a process that was in, whose ckptd was lost. */
MUST_CHECK int hand_rejoin(struct hand *k, const char *job, uint32_t rank, uint32_t world,
			   const char *run);
MUST_CHECK int hand_declare(struct hand *k, struct geometry g, const struct shard *shards,
			    uint32_t n);
MUST_CHECK int hand_prepare(struct hand *k);
/* Before the slots have pages; none is mapped. The second one does not wait for the answer. */
MUST_CHECK int hand_prepare_early(struct hand *k);
MUST_CHECK int hand_send_prepare_early(struct hand *k);
/* Waits for a credit, has the shards filled, and seals, with one blob "rng". */
typedef void hand_fill_fn(void *arg, const struct shard *s, uint8_t *out);
MUST_CHECK int hand_save(struct hand *k, uint64_t step, hand_fill_fn *fill, void *arg,
			 const void *blob, uint64_t blob_bytes);
/* The two halves of hand_save(): a credit is there; the slot that it names is sealed as it is. */
MUST_CHECK int hand_credit(struct hand *k);
MUST_CHECK int hand_seal(struct hand *k, uint64_t step, struct Ckpt__BlobPlace **blobs,
			 size_t n_blobs, uint64_t image_len);
MUST_CHECK int hand_wait(struct hand *k, uint64_t step, uint32_t what);
MUST_CHECK int hand_send_wait(struct hand *k, uint64_t step, uint32_t what);
/* Newest first; at most n. */
MUST_CHECK int hand_list(struct hand *k, struct hand_info *infos, size_t n, size_t *ret_n);
/* attempt NULL with step CKPT_LATEST. The load is ended, complete, when everything was placed. */
MUST_CHECK int hand_load(struct hand *k, uint64_t step, const struct attempt_id *attempt,
			 struct hand_loaded *ret);
/* Any request (the id is set here); *ret is to be freed in every case. */
MUST_CHECK int hand_ask(struct hand *k, struct Ckpt__Request *q, struct hand_answer *ret);
void hand_answer_free(struct hand_answer *a);
/* The code alone. */
MUST_CHECK int hand_ask_code(struct hand *k, struct Ckpt__Request *q);
/* Without waiting; and the next answer: its code, *ret_id. */
MUST_CHECK int hand_send(struct hand *k, struct Ckpt__Request *q);
MUST_CHECK int hand_send_fd(struct hand *k, struct Ckpt__Request *q, int fd);
MUST_CHECK int hand_receive(struct hand *k, uint64_t *ret_id);
/* The next answer itself; *ret, all zero before, is to be freed in every case. */
MUST_CHECK int hand_take(struct hand *k, struct hand_answer *ret);
/* verb: CKPT__ADMIN__VERB__PIN, ... */
MUST_CHECK int hand_admin(struct hand *k, const char *job, int verb, uint64_t step);

#endif
