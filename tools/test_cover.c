/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks declared of a tensor: whole, with a hole, twice, in shards that overlap.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/lib/test.h"
#include "tools/cover.h"

#define RANKS_MAX 4

struct part {
	uint64_t row, rows, col, cols;
	uint64_t start, stop; /* 0, 0: all of the box */
};

static void declare(const struct part *p, struct declaration *ret, void **ret_bytes)
{
	struct declaration_builder *b = NULL;
	struct shard s = {.name = "layers.0.w",
			  .name_len = 10,
			  .dtype = CKPT_F32,
			  .global = {.ndim = 2, .dim = {6, 8}}};
	struct err e = {0};
	size_t len = 0;

	assert_int_equal(declaration_builder_new(GEOMETRY_DEFAULT, &b), 0);
	s.box = (struct box){.ndim = 2, .offset = {p->row, p->col}, .length = {p->rows, p->cols}};
	if (p->stop) {
		s.flat = true;
		s.start = p->start;
		s.stop = p->stop;
	}
	if (p->rows)
		assert_int_equal(declaration_add(b, &s, &e), 0);
	assert_int_equal(declaration_finish(b, ret_bytes, &len, &e), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(*ret_bytes, len, ret, &e), 0);
}

static void check(const struct part *parts, uint32_t world, const char *says)
{
	const struct layout_tensor t = {.name = "layers.0.w",
					.name_len = 10,
					.dtype = CKPT_F32,
					.global = {.ndim = 2, .dim = {6, 8}}};
	struct declaration ranks[RANKS_MAX];
	void *bytes[RANKS_MAX] = {NULL};
	struct err e = {0};
	int r;

	for (uint32_t i = 0; i < world; i++)
		declare(&parts[i], &ranks[i], &bytes[i]);
	r = cover_check("mine.json", &t, ranks, world, &e);
	if (r != (says ? -EINVAL : 0) || (says && strcmp(e.text, says) != 0))
		fail_msg("%d '%s', not '%s'", r, e.text, says ? says : "");
	for (uint32_t i = 0; i < world; i++)
		alloc_free(bytes[i]);
}

#define NOTHING                                                                                    \
	{                                                                                          \
		0, 0, 0, 0, 0, 0                                                                   \
	}
#define HOLE "layout 'mine.json' leaves a hole: "

static void test_whole(void **state)
{
	(void)state;
	check((const struct part[]){{0, 6, 0, 8, 0, 0}}, 1, NULL);
	check((const struct part[]){{0, 2, 0, 8, 0, 0}, {2, 4, 0, 8, 0, 0}}, 2, NULL);
	check((const struct part[]){{0, 6, 0, 8, 0, 0}, {0, 6, 0, 8, 0, 0}, NOTHING}, 3, NULL);
	check((const struct part[]){{0, 6, 0, 8, 0, 13}, {0, 6, 0, 8, 13, 48}}, 2, NULL);
	check((const struct part[]){{0, 4, 0, 8, 0, 0}, {2, 4, 0, 8, 0, 0}}, 2,
	      NULL); /* overlap: alike */
}

static void test_holes(void **state)
{
	(void)state;
	check((const struct part[]){NOTHING, NOTHING}, 2,
	      HOLE "tensor 'layers.0.w' is wanted but stored by no rank");
	check((const struct part[]){{0, 2, 0, 8, 0, 0}, {3, 3, 0, 8, 0, 0}}, 2,
	      HOLE "elements [2:3, 0:8] of tensor 'layers.0.w' are stored by no rank");
	/* As many elements as there are, some of them twice */
	check((const struct part[]){{0, 3, 0, 8, 0, 0}, {0, 3, 0, 8, 0, 0}}, 2,
	      HOLE "elements [3:6, 0:8] of tensor 'layers.0.w' are stored by no rank");
	check((const struct part[]){{0, 4, 0, 8, 0, 0}, {2, 2, 0, 8, 0, 0}}, 2,
	      HOLE "elements [4:6, 0:8] of tensor 'layers.0.w' are stored by no rank");
	check((const struct part[]){{0, 4, 0, 8, 0, 0}, {2, 3, 0, 8, 0, 0}, {0, 1, 0, 8, 0, 0}}, 3,
	      HOLE "elements [5:6, 0:8] of tensor 'layers.0.w' are stored by no rank");
	check((const struct part[]){{0, 6, 0, 8, 0, 13}, {0, 6, 0, 8, 14, 48}}, 2,
	      HOLE "elements [1:2, 5:6] of tensor 'layers.0.w' are stored by no rank");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
