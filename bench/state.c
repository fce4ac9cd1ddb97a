/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - what a trainer has in memory, and the copies that no checkpoint can be faster than.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/huge.h"
#include "bench/trainer.h"
#include "ckpt.h"
#include "codec/copy.h"
#include "model/tensor.h"

/* fp32 tensors of one block of a transformer of width 1024: bytes. */
static const uint64_t block[] = {
	4096,     4096,			/* norm */
	12u << 20, 12288,		/* query, key, value */
	4u << 20, 4096,			/* projection */
	4096,     4096,			/* norm */
	16u << 20, 16384,		/* up */
	16u << 20, 4096,		/* down */
};
#define BLOCK_TENSORS (sizeof(block) / sizeof(block[0]))
#define BLOCKS_TENSORS_MAX 8192u /* of a transformer */
#define PAGED_MAX 8192u /* so many equal tensors begin at a page; of more the bytes alone count */
#define COPY_PIECE (256u << 10)
#define COPY_THREADS_MAX 64u

static uint64_t tensor_bytes(uint32_t i, uint64_t left, uint64_t bytes, uint32_t tensors)
{
	if (tensors == 0)
		return min_u64(left, block[i % BLOCK_TENSORS]);
	if (i + 1 == tensors)
		return left;
	return tensors > PAGED_MAX ? bytes / tensors / 4 * 4 : bytes / tensors / 4096 * 4096;
}

static int divide(struct state *s, uint32_t tensors, struct err *e)
{
	uint32_t most = tensors ? tensors : BLOCKS_TENSORS_MAX;
	uint64_t at = 0;

	s->tensors = alloc_array(most, sizeof(*s->tensors));
	if (!s->tensors)
		return err_code(e, -ENOMEM, "make a state");
	for (s->n = 0; at < s->bytes && s->n < most; s->n++) {
		uint64_t len = tensor_bytes(s->n, s->bytes - at, s->bytes, tensors);

		s->tensors[s->n] = (struct ckpt_binding){ .ptr = s->base + at, .device = CKPT_HOST,
							  .dtype = CKPT_F32, .bytes = len };
		at += len;
	}
	return at == s->bytes ? 0 : err_set(e, -E2BIG, "the state has too many tensors");
}

static int state_map(struct state *s, uint64_t bytes, struct err *e)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED)
		return err_code(e, -errno, "take %llu MiB for a state",
				(unsigned long long)(bytes >> 20));
	s->base = base;
	s->bytes = bytes;
	return 0;
}

int state_make(struct state *s, uint64_t bytes, uint32_t tensors, uint64_t seed, struct err *e)
{
	uint64_t x = 88172645463325252ull ^ (seed * 0x9e3779b97f4a7c15ull);
	uint64_t *p;
	int r;

	assert(bytes % 4096 == 0);
	r = state_map(s, bytes, e);
	if (r < 0)
		return r;
	p = (uint64_t *)(void *)s->base;
	for (uint64_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = x;
	}
	return divide(s, tensors, e);
}

int state_room(struct state *s, uint64_t bytes, uint32_t tensors, struct err *e)
{
	int r;

	if (s->base)
		munmap(s->base, s->bytes);
	alloc_free(s->tensors);
	*s = (struct state){0};
	r = state_map(s, bytes, e);
	return r < 0 ? r : divide(s, tensors, e);
}

/* ---- Matrices ---- */

/* Two elements from number i of the whole matrices on. */
static uint64_t two_elements(uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;

	return x ^ (x >> 29);
}

static bool each_pair(const struct state *s, const struct matrix_cut *m, bool check)
{
	uint64_t width = MATRIX_COLUMNS / (uint64_t)m->world, *p = (uint64_t *)(void *)s->base;
	bool right = true;

	for (uint64_t row = 0; row < MATRICES * m->rows; row++) {
		uint64_t first = row * MATRIX_COLUMNS + (uint64_t)m->rank * width;

		for (uint64_t i = 0; i < width; i += 2, p++) {
			if (check)
				right = right && *p == two_elements(first + i);
			else
				*p = two_elements(first + i);
		}
	}
	return right;
}

int state_make_matrices(struct state *s, const struct matrix_cut *m, struct err *e)
{
	uint64_t each = m->rows * (MATRIX_COLUMNS / (uint64_t)m->world) * 4;
	int r = state_map(s, MATRICES * each, e);

	if (r < 0)
		return r;
	s->tensors = alloc_array(MATRICES, sizeof(*s->tensors));
	if (!s->tensors)
		return err_code(e, -ENOMEM, "make a state");
	for (s->n = 0; s->n < MATRICES; s->n++)
		s->tensors[s->n] = (struct ckpt_binding){.ptr = s->base + s->n * each,
							 .device = CKPT_HOST,
							 .dtype = CKPT_F32,
							 .bytes = each};
	each_pair(s, m, false);
	return 0;
}

bool state_has_matrices(const struct state *s, const struct matrix_cut *m)
{
	return each_pair(s, m, true);
}

void state_touch(struct state *s, uint64_t step)
{
	for (uint32_t i = 0; i < s->n; i++)
		put_le64(s->tensors[i].ptr, step * s->n + i);
}

int memfd_map(uint64_t bytes, uint8_t **ret, struct err *e)
{
	int fd = memfd_create("bench", MFD_CLOEXEC), r = 0;
	uint8_t *p = NULL;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		r = -errno;
	if (r == 0)
		p = huge_map(fd, bytes, PROT_READ | PROT_WRITE);
	if (r == 0 && !p)
		r = -errno;
	if (r == 0)
		huge_fill(p, bytes); /* the limit has what ckptd has */
	if (r == 0 && fallocate(fd, 0, 0, (off_t)bytes) != 0)
		r = -errno;
	if (r == 0 && madvise(p, bytes, MADV_POPULATE_WRITE) != 0)
		memset(p, 0, bytes); /* a kernel before 5.14 */
	if (fd >= 0)
		close(fd);
	if (r < 0)
		return err_code(e, r, "map a memfd of %llu MiB", (unsigned long long)(bytes >> 20));
	*ret = p;
	return 0;
}

/* ---- Copies by several threads ---- */

struct copying {
	uint8_t *to;
	const uint8_t *from;
	uint8_t *leaves;
	uint64_t bytes;
	_Atomic uint64_t next;
};

static void *copy_work(void *arg)
{
	struct copying *c = arg;
	const uint64_t leaf = 64u << 10;
	uint64_t at, end;

	while ((at = atomic_fetch_add(&c->next, COPY_PIECE)) < c->bytes) {
		end = min_u64(at + COPY_PIECE, c->bytes);
		if (!c->leaves) {
			memcpy(c->to + at, c->from + at, end - at);
			continue;
		}
		for (; at < end; at += leaf) {
			struct digest d = copy_digest(c->to + at, c->from + at,
						      min_u64(leaf, end - at));

			memcpy(c->leaves + at / leaf * sizeof(d.b), d.b, sizeof(d.b));
		}
	}
	return NULL;
}

int parallel_copy(uint8_t *to, const uint8_t *from, uint64_t bytes, uint32_t threads,
		  uint8_t *leaves)
{
	struct copying c = { .to = to, .from = from, .leaves = leaves, .bytes = bytes };
	pthread_t thread[COPY_THREADS_MAX];
	uint32_t n = 1;
	int r = 0;

	assert(threads >= 1 && threads <= COPY_THREADS_MAX);
	while (n < threads && r == 0) {
		r = -pthread_create(&thread[n], NULL, copy_work, &c);
		n += r == 0;
	}
	copy_work(&c);
	while (--n > 0)
		pthread_join(thread[n], NULL);
	return r;
}
