/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a pickle of torch: .metadata of a DCP folder, data.pkl of a state
 * dictionary, plain values that are written again. What is written again reads as it was.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tools/dcp_metadata.h"
#include "tools/pickle_write.h"
#include "tools/torch_names.h"
#include "tools/torch_state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_metadata(const uint8_t *data, size_t size)
{
	struct dcp_metadata m;

	if (dcp_metadata_read(data, size, &m, NULL) == 0) {
		size_t chunks = 0;

		for (size_t i = 0; i < m.n_tensors; i++) {
			const struct dcp_tensor *t = &m.tensors[i];

			assert(t->name_len > 0 && t->name_len <= CKPT_NAME_MAX);
			assert(t->first_chunk == chunks && dtype_bytes(t->dtype) > 0);
			chunks += t->n_chunks;
		}
		assert(chunks == m.n_chunks);
		for (size_t i = 0; i < m.n_chunks; i++)
			assert(m.chunks[i].place.file < m.n_files);
		for (size_t i = 0; i < m.n_blobs; i++)
			assert(m.blobs[i].place.file < m.n_files);
	}
	dcp_metadata_fini(&m);
}

static void use_state(const struct pickle *p)
{
	struct torch_state s;
	struct torch_tensor t;

	if (torch_state_read(p, &s, NULL) == 0) {
		size_t tensors = 0;

		for (size_t i = 0; i < s.n; i++) {
			const struct torch_item *item = &s.items[i];

			assert(strlen(item->name) > 0 && strlen(item->name) <= CKPT_NAME_MAX);
			tensors += item->tensor;
			if (!item->tensor)
				continue;
			assert(torch_tensor_of(p, item->value, &t, NULL) == 1);
			assert((t.first + t.span) * dtype_bytes(t.dtype) <= t.storage_bytes);
		}
		assert(tensors == s.n_tensors);
	}
	torch_state_fini(&s);
}

static void use_value(const struct pickle *p)
{
	struct pickle_writer w = {0};
	struct pickle again;

	pickle_begin(&w);
	if (pickle_copy(&w, p, pickle_at(p, p->root), NULL) == 0) {
		pickle_op(&w, PICKLE_OP_STOP);
		if (!w.out.bad) {
			if (pickle_parse(w.out.buf, w.out.len, torch_find_name, &again, NULL) != 0)
				abort();
			assert(pickle_at(&again, again.root)->type == pickle_at(p, p->root)->type ||
			       pickle_at(&again, again.root)->type == PICKLE_CALL);
			pickle_free(&again);
		}
	}
	pickle_writer_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pickle p;

	use_metadata(data, size);
	if (pickle_parse(data, size, torch_find_name, &p, NULL) == 0) {
		use_state(&p);
		use_value(&p);
	}
	pickle_free(&p);
	return 0;
}
