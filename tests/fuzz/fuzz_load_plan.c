/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a load plan, as they come to a trainer from ckptd. What is accepted has
 * all the leaves and places it speaks of, and encodes to a plan that is accepted again and encodes
 * to the same bytes.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/load_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint64_t targets[2] = { 64, 1024 };

static void use(const struct load_plan *p)
{
	volatile uint8_t sink = 0;

	for (uint32_t i = 0; i < p->n_sources; i++) {
		const struct load_source *s = &p->sources[i];
		uint64_t leaves = div_up(s->image_len, s->geometry.leaf);
		uint64_t chunks = div_up(s->image_len, s->geometry.chunk);

		if (leaves)
			sink = (uint8_t)(sink + s->leaves[16 * leaves - 1]);
		for (uint64_t k = 0; s->kind == LOAD_FILE && k < chunks; k++) {
			struct chunk_place place = chunk_place_get(s->places, k);

			assert(place.file == 0 && place.stored <= s->geometry.chunk);
		}
	}
	for (uint32_t i = 0; i < p->n_blobs; i++) {
		const struct load_blob *b = &p->blobs[i];

		assert(b->source < p->n_sources && strlen(b->name) > 0);
		assert(b->image_offset <= p->sources[b->source].image_len);
		assert(b->bytes <= p->sources[b->source].image_len - b->image_offset);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct writer once = { 0 }, twice = { 0 };
	struct load_plan p;

	if (load_plan_decode(data, size, targets, 2, &p, NULL) != 0)
		return 0;
	use(&p);
	if (load_plan_encode(&p, &once) != 0)
		abort();
	load_plan_fini(&p);
	if (load_plan_decode(once.buf, once.len, targets, 2, &p, NULL) != 0 ||
	    load_plan_encode(&p, &twice) != 0)
		abort();
	assert(once.len == twice.len && memcmp(once.buf, twice.buf, once.len) == 0);
	load_plan_fini(&p);
	writer_free(&once);
	writer_free(&twice);
	return 0;
}
