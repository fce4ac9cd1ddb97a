/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a safetensors file, or the index of several. What is accepted covers the
 * data without hole or overlap, and says the same when it is written and read again; what is
 * refused is refused in words.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/json_read.h"
#include "tools/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const struct safetensors_header *a, const struct safetensors_header *b)
{
	assert(a->n == b->n);
	for (size_t i = 0; i < a->n; i++) {
		const struct safetensors_entry *x = &a->entries[i], *y = &b->entries[i];

		assert(x->name_len == y->name_len && !memcmp(x->name, y->name, x->name_len));
		assert(x->dtype == y->dtype && x->begin == y->begin && x->end == y->end);
		assert(x->shape.ndim == y->shape.ndim);
		for (uint32_t k = 0; k < x->shape.ndim; k++)
			assert(x->shape.dim[k] == y->shape.dim[k]);
	}
}

static int nothing(void *arg, const struct json_event *ev, struct err *e)
{
	(void)arg;
	(void)ev;
	(void)e;
	return 0;
}

/* What one reader takes for JSON the other does, as what is kept of it is read by both. */
static void as_json(const uint8_t *json, size_t len)
{
	json_t *m;

	if (json_read((const char *)json, len, nothing, NULL, NULL) < 0)
		return;
	m = json_loadb((const char *)json, len, JSON_DECODE_ANY, NULL);
	assert(m);
	json_decref(m);
}

/* What is kept of the JSON is JSON, as another reader has it. */
static json_t *metadata_of(const struct safetensors_header *h)
{
	json_t *m;

	if (!h->metadata)
		return NULL;
	m = json_loadb(h->metadata, h->metadata_len, JSON_REJECT_DUPLICATES, NULL);
	assert(json_is_object(m));
	return m;
}

static void as_header(const uint8_t *json, size_t len, uint64_t data_len)
{
	struct safetensors_header h, again;
	struct err e = {0};
	json_t *m, *m_again;
	uint64_t end = 0;
	void *built;
	size_t built_len;
	int r = safetensors_parse(json, len, data_len, &h, &e);

	assert(r == 0 || (e.code == r && e.text[0]));
	if (r < 0)
		return;
	for (size_t i = 0; i < h.n; i++) {
		assert(h.entries[i].begin == end && h.entries[i].end >= end);
		end = h.entries[i].end;
	}
	assert(end == data_len);
	m = metadata_of(&h);
	r = safetensors_build(h.entries, h.n, m, &built, &built_len, &e);
	assert(r == 0);
	r = safetensors_parse((uint8_t *)built + 8, built_len - 8, data_len, &again, &e);
	assert(r == 0);
	same(&h, &again);
	m_again = metadata_of(&again);
	assert(json_equal(m, m_again) || (!m && !m_again));
	json_decref(m);
	json_decref(m_again);
	alloc_free(built);
	safetensors_header_fini(&again);
	safetensors_header_fini(&h);
}

/* The end of the last tensor that the text names: what lies behind the check of the cover is then
 * reached whatever else the bytes are. */
static uint64_t guess_data_len(const uint8_t *json, size_t len)
{
	uint64_t max = 0, v = 0;

	for (size_t i = 0; i < len; i++) {
		if (json[i] >= '0' && json[i] <= '9' && v < UINT64_MAX / 20) {
			v = v * 10 + (uint64_t)(json[i] - '0');
			continue;
		}
		if (json[i] == ']' && v > max)
			max = v;
		v = 0;
	}
	return max;
}

static void as_index(const uint8_t *json, size_t len)
{
	struct safetensors_index x;
	struct err e = {0};
	int r = safetensors_index_parse(json, len, &x, &e);

	assert(r == 0 || (e.code == r && e.text[0]));
	if (r < 0)
		return;
	for (size_t i = 0; i < x.n; i++) {
		const struct safetensors_indexed *t = &x.entries[i];

		assert(t->file_len > 0 && !memchr(t->file, '/', t->file_len));
		assert(safetensors_index_find(&x, t->name, t->name_len) == t);
	}
	safetensors_index_fini(&x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= 8 && get_le64(data) <= size - 8) { /* a whole file */
		uint64_t len = get_le64(data);

		as_header(data + 8, len, size - 8 - len);
		as_header(data + 8, len, guess_data_len(data + 8, len));
	}
	as_header(data, size, guess_data_len(data, size));
	as_index(data, size);
	as_json(data, size);
	return 0;
}
