/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - `ckptctl export`: what was asked for, and the answer. Bytes are in exchange.c and in
 * the formats. One thread.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/floats.h"
#include "tools/document.h"
#include "tools/exchange.h"
#include "tools/plural.h"
#include "tools/print.h"

#define MEMORY_DEFAULT ((uint64_t)256 << 20)

static int find_format(const char *name, const struct exchange_format **ret, struct err *e)
{
	char known[200] = "";

	for (const struct exchange_format *f = exchange_formats; f->name; f++) {
		if (!f->write)
			continue;
		if (strcmp(f->name, name) == 0) {
			*ret = f;
			return 0;
		}
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
			 known[0] ? ", " : "", f->name);
	}
	return err_set(e, -EINVAL, "'%.60s' is no format that can be exported: there is %s", name,
		       known);
}

static int parse_cast(const char *name, uint32_t *ret, struct err *e)
{
	for (uint32_t dtype = 1; dtype_bytes(dtype); dtype++)
		if (strcmp(dtype_name(dtype), name) == 0 && float_can_cast(dtype, dtype)) {
			*ret = dtype;
			return 0;
		}
	return err_set(e, -EINVAL, "--cast needs bf16, f16, f32 or f64, not '%.60s'", name);
}

/* What an imported file said of itself. It is for people and other programs: what cannot be read is
 * left out. */
static void add_imported(struct source *from, json_t *m)
{
	CLEANUP_FREE void *bytes = NULL;
	uint64_t len = 0;
	const char *key;
	json_t *old = NULL, *v;

	if (reading_blob(from->reading, 0, SAFETENSORS_BLOB, strlen(SAFETENSORS_BLOB), &bytes,
			 &len, NULL) == 0)
		old = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(old))
		json_object_foreach(old, key, v)
			if (json_is_string(v))
				json_object_set(m, key, v);
	json_decref(old);
}

/* The format "pt", without which some loaders of safetensors refuse a file, though none of them
 * looks at what it means; what the file said that was imported; where it comes from; and what
 * --metadata says. */
static int make_metadata(const struct ctl *c, struct source *from, json_t **ret, struct err *e)
{
	const struct commit_file *commit = reading_commit(from->reading);
	json_t *m = json_pack("{s:s}", "format", "pt");
	char step[32];

	add_imported(from, m);
	snprintf(step, sizeof(step), "%" PRIu64, commit->id.step);
	json_object_set_new(m, "ckpt.job", json_string(commit->job_name));
	json_object_set_new(m, "ckpt.step", json_string(step));
	json_object_set_new(m, "ckpt.attempt",
			    doc_hex(commit->id.attempt.b, sizeof(commit->id.attempt.b)));
	for (uint32_t i = 0; i < c->metadata.n; i++) {
		const char *word = c->metadata.at[i], *equals = strchr(word, '=');

		if (equals && equals > word &&
		    json_object_setn_new(m, word, (size_t)(equals - word),
					 json_string(equals + 1)) == 0)
			continue;
		json_decref(m);
		return err_set(e, -EINVAL, "--metadata needs KEY=VALUE in UTF-8, not '%.100s'",
			       word);
	}
	*ret = m;
	return 0;
}

static uint64_t count_blobs(struct source *from)
{
	uint64_t n = 0;

	for (uint32_t rank = 0; rank < reading_commit(from->reading)->world; rank++) {
		const struct rank_table *t = reading_table(from->reading, rank);

		n += t ? t->n_blobs : 0;
	}
	return n;
}

static void answer(const struct ctl *c, const struct exporting *x,
		   const struct exchange_format *format)
{
	const struct commit_file *commit = reading_commit(x->from->reading);
	uint64_t blobs = count_blobs(x->from) - x->blobs;
	char size[TEXT_MAX];

	if (c->json) {
		print_json(json_pack(
			"{s:i, s:s, s:s, s:s, s:s, s:o, s:I, s:o, s:I, s:I, s:I, s:I, s:O}",
			"schema", 2, "source", "files", "verb", "export", "format", format->name,
			"job", commit->job_name, "id",
			doc_hex(commit->id.job.b, sizeof(commit->id.job.b)), "step",
			(json_int_t)commit->id.step, "attempt",
			doc_hex(commit->id.attempt.b, sizeof(commit->id.attempt.b)), "tensors",
			(json_int_t)x->n, "bytes", (json_int_t)x->bytes, "overflows",
			(json_int_t)x->overflows, "blobs_left_out", (json_int_t)blobs, "files",
			x->files));
		return;
	}
	if (c->talk < 0)
		return;
	say("wrote %zu tensor%s of %s, %s, to '%s'%s", x->n, plural(x->n), x->from->what,
	    text_bytes(size, x->bytes), x->output,
	    json_array_size(x->files) > 1 ? " and an index of them" : "");
	if (x->overflows)
		say("%" PRIu64 " finite number%s beyond %s became infinite", x->overflows,
		    plural(x->overflows), dtype_name(x->cast));
	if (blobs)
		say("%" PRIu64 " blob%s left out: no tensors", blobs, plural(blobs));
}

static int run(const struct ctl *c, struct exporting *x, const struct exchange_format *format,
	       struct err *e)
{
	CLEANUP_FREE size_t *chosen = NULL;
	uint64_t total = 0;
	int r = source_choose(x->from, &c->tensors, &chosen, &x->n, e);

	x->chosen = chosen;
	if (r == 0)
		r = make_metadata(c, x->from, &x->metadata, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < x->n; i++)
		total += x->from->tensors[chosen[i]].bytes;
	x->files = json_array();
	progress_start(&x->progress, total, c->talk >= 0 && !c->json);
	r = format->write(x, e);
	progress_clear(&x->progress);
	if (r == 0)
		answer(c, x, format);
	json_decref(x->files);
	json_decref(x->metadata);
	return r;
}

/* What the format would pass over in silence. */
static int check_format_options(const struct ctl *c, const struct exchange_format *format,
				struct err *e)
{
	bool dcp = strcmp(format->name, "dcp") == 0;

	if (c->torch && !dcp)
		return err_set(e, -EINVAL,
			       "--torch is for --format dcp: %s has no versions of torch",
			       format->name);
	if (c->metadata.n && dcp)
		return err_set(e, -EINVAL,
			       "--metadata is for safetensors: a DCP folder has no place "
			       "for it");
	return 0;
}

int verb_export(const struct ctl *c, struct err *e)
{
	uint64_t memory = c->memory ? c->memory : MEMORY_DEFAULT;
	struct reading_options o = {.data = c->data,
				    .job = c->args[0],
				    .least = (enum trust_level)c->min_trust,
				    .step = c->n_args > 1 ? c->args[1] : NULL,
				    .memory = max_u64(memory / 2, 1)};
	struct exporting x = {.output = c->output,
			      .replace = c->yes,
			      .shard_size = c->shard_size,
			      .torch_1 = c->torch && strcmp(c->torch, "1.13") == 0,
			      .memory = memory / 2};
	const struct exchange_format *format = NULL;
	int r;

	if (!c->output)
		return err_set(e, -EINVAL, "--output PATH says which file or folder is to be made");
	if (c->torch && strcmp(c->torch, "1.13") != 0 && strcmp(c->torch, "2") != 0)
		return err_set(e, -EINVAL, "--torch needs 1.13 or 2, not '%.60s'", c->torch);
	r = find_format(c->format ? c->format : "safetensors", &format, e);
	if (r == 0)
		r = check_format_options(c, format, e);
	if (r == 0 && c->cast)
		r = parse_cast(c->cast, &x.cast, e);
	if (r == 0)
		r = source_of_checkpoint(&o, &x.from, e);
	if (r < 0)
		return r;
	if (x.cast)
		x.memory /= 2; /* there are two buffers then */
	r = run(c, &x, format, e);
	source_close(x.from);
	return r;
}
