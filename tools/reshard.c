/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.c - `ckptctl reshard`: a durable checkpoint under another layout, as a new job's. The
 * source is read under shared locks and stays as it is (I12). One thread, but for reshard_run.c.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/layout_file.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/progress.h"
#include "tools/reshard.h"
#include "tools/tensor_list.h"

#define MEMORY_DEFAULT (256u << 20)
#define MAPPED_BYTES   (256 << 10)
#define NOTE_LEAST     (8u << 20) /* bytes that a kill may cost */
#define NOTE_MOST      (256u << 20)
#define TABLES_SHARE   8u /* of the memory, for tables of the source until it is divided */

/* ---- Words ---- */

static json_t *left_out(const struct reshard *x)
{
	uint32_t world = reading_commit(x->reading)->world;
	json_t *list = json_array();
	struct blob_entry b;

	for (uint32_t rank = x->world; rank < world; rank++) {
		const struct rank_table *t = reading_table(x->reading, rank);

		for (uint32_t i = 0; t && i < t->n_blobs; i++)
			if (rank_table_blob(t, i, &b) == 0)
				json_array_append_new(list, json_pack("{s:i, s:o, s:o}", "rank",
								      (int)rank, "name",
								      doc_name(b.name, b.name_len),
								      "bytes", doc_count(b.bytes)));
	}
	return list;
}

static json_t *ranks_json(const struct reshard *x)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < x->world; i++) {
		const struct reshard_target *t = &x->targets[i];

		json_array_append_new(list,
				      json_pack("{s:i, s:i, s:o, s:i, s:o}", "rank", (int)i,
						"pieces", (int)t->declaration.n_shards, "bytes",
						doc_count(t->image_len), "blobs", (int)t->n_blobs,
						"already", doc_count(t->position)));
	}
	return list;
}

static json_t *document(const struct ctl *c, const struct reshard *x,
			const struct reshard_done *done, double seconds, bool resumed)
{
	const struct commit_file *from = reading_commit(x->reading);

	return json_pack(
		"{s:i, s:s, s:s, s:s, s:o, s:o, s:s, s:s, s:s, s:b, s:b, s:i, s:i, s:o, "
		"s:o, s:o, s:o, s:o, s:f, s:o, s:o}",
		"schema", 2, "source", "files", "verb", "reshard", "job", reading_job(x->reading),
		"step", doc_count(from->id.step), "attempt", doc_hex(from->id.attempt.b, 16),
		"data", reading_path(x->reading), "to", c->to, "as", c->as ? c->as : "", "dry_run",
		(int)c->dry_run, "resumed", (int)resumed, "world_from", (int)from->world, "world",
		(int)x->world, "tensors", doc_count(reading_n_tensors(x->reading)), "bytes_read",
		doc_count(done->read), "bytes_written", doc_count(target_bytes(x)), "memory",
		doc_count(x->memory.given), "memory_least", doc_count(x->memory.least), "seconds",
		seconds, "ranks", ranks_json(x), "left_out", left_out(x));
}

static int print_table(const struct reshard *x)
{
	struct table *t = table_new("RANK> PIECES> BYTES> BLOBS>");
	char size[TEXT_MAX];

	for (uint32_t i = 0; i < x->world; i++) {
		table_cell(t, "%u", i);
		table_cell(t, "%u", x->targets[i].declaration.n_shards);
		table_cell(t, "%s", text_bytes(size, x->targets[i].image_len));
		table_cell(t, "%u", x->targets[i].n_blobs);
	}
	return table_end(t);
}

static size_t passed_over(const struct reshard *x)
{
	size_t n = 0;

	for (size_t i = 0; i < reading_n_tensors(x->reading); i++) {
		const struct reading_tensor *t = reading_tensor(x->reading, i);
		const struct layout_tensor what = {.name = t->name,
						   .name_len = t->name_len,
						   .dtype = t->dtype,
						   .global = t->global};

		n += layout_passes_over(x->layout, &what);
	}
	return n;
}

static void say_left_out(const json_t *doc)
{
	const json_t *list = json_object_get(doc, "left_out"), *b;
	size_t i;

	json_array_foreach(list, i, b)
		say("left out: blob '%s' of rank %" PRIu64 ", which the new layout does not have",
		    doc_text(b, "name"), doc_number(b, "rank"));
}

static int report(const struct ctl *c, const struct reshard *x, const struct reshard_done *done,
		  double seconds, bool resumed, struct err *e)
{
	char read[TEXT_MAX], written[TEXT_MAX], memory[TEXT_MAX], least[TEXT_MAX];
	json_t *doc = document(c, x, done, seconds, resumed);
	int r = doc ? 0 : err_code(e, -ENOMEM, "say what was done");

	if (r == 0 && c->json) {
		print_json(doc);
		return 0;
	}
	text_bytes(read, done->read);
	text_bytes(written, target_bytes(x));
	if (r == 0 && (c->dry_run || c->talk > 0)) {
		r = print_table(x);
		if (r < 0)
			err_code(e, r, "print a table");
	}
	if (r == 0 && c->dry_run)
		say("%s to read, %s to write%s, in at most %s of memory (at least %s)", read,
		    written, resumed ? " with what an earlier run has written" : "",
		    text_bytes(memory, x->memory.given), text_bytes(least, x->memory.least));
	else if (r == 0 && c->talk >= 0)
		say("job '%s' step %" PRIu64 " is durable on %u rank%s: %s read, %s written%s",
		    c->as, reading_commit(x->reading)->id.step, x->world, plural(x->world), read,
		    written, resumed ? ", with what an earlier run had done" : "");
	if (r == 0 && c->talk >= 0) {
		say_passed_over(passed_over(x), reading_n_tensors(x->reading));
		say_left_out(doc);
	}
	json_decref(doc);
	return r;
}

/* ---- Deeds ---- */

static int open_making(const struct ctl *c, const struct reshard *x, struct making **ret,
		       struct err *e)
{
	CLEANUP_FREE struct making_rank *ranks = alloc_array(x->world, sizeof(*ranks));
	const struct commit_file *from = reading_commit(x->reading);
	const struct making_options o = {
		.data = c->to_data ? c->to_data : reading_path(x->reading),
		.socket = c->socket,
		.job = c->as,
		.uid = reading_uid(x->reading),
		.step = from->id.step,
		.from = from->root,
		.memory = x->memory.making,
		.compression = x->compression,
		.sync_every = max_u64(NOTE_LEAST, min_u64(target_bytes(x) / 32, NOTE_MOST)),
		.dry_run = c->dry_run,
		.keep = true,
	};

	if (!ranks)
		return err_code(e, -ENOMEM, "make %u rank%s", x->world, plural(x->world));
	for (uint32_t i = 0; i < x->world; i++)
		ranks[i] = (struct making_rank){.declaration = x->targets[i].bytes,
						.declaration_len = x->targets[i].len,
						.blobs = x->targets[i].blobs,
						.n_blobs = x->targets[i].n_blobs};
	return making_open(&o, ranks, x->world, ret, e);
}

static int count(const struct ctl *c, struct reshard *x, struct err *e)
{
	struct reshard_done done;
	struct making *m = NULL;
	bool resumed;
	int r = open_making(c, x, &m, e);

	if (r < 0)
		return r;
	resumed = making_resumed(m);
	for (uint32_t i = 0; i < x->world; i++)
		x->targets[i].position = making_position(m, i);
	making_close(m);
	r = reshard_count(x, &done, e);
	return r < 0 ? r : report(c, x, &done, 0, resumed, e);
}

static int move(const struct ctl *c, struct reshard *x, struct err *e)
{
	struct making *m = NULL;
	struct reshard_done done = {0};
	struct progress clock;
	bool resumed;
	int r = open_making(c, x, &m, e);

	if (r < 0)
		return r;
	resumed = making_resumed(m);
	if (resumed && !c->json && c->talk >= 0)
		complain("going on with what an earlier run did of job '%s'", c->as);
	progress_start(&clock, 0, false);
	r = reshard_run(x, m, !c->json && c->talk >= 0, &done, e);
	if (r == 0)
		r = making_commit(m, e);
	making_close(m);
	return r < 0 ? r : report(c, x, &done, progress_seconds(&clock), resumed, e);
}

static int reshard(const struct ctl *c, struct reshard *x, struct err *e)
{
	const struct reading_options o = {
		.data = c->data,
		.job = c->args[0],
		.least = (enum trust_level)c->min_trust,
		.step = c->n_args > 1 ? c->args[1] : NULL,
		.tables = (c->memory ? c->memory : MEMORY_DEFAULT) / TABLES_SHARE,
	};
	int r = reading_open(&o, &x->reading, e);

	if (r == 0)
		r = targets_make(x, c->to, e);
	if (r == 0)
		r = memory_divide(x, c->memory ? c->memory : MEMORY_DEFAULT, e);
	if (r < 0)
		return r;
	return c->dry_run ? count(c, x, e) : move(c, x, e);
}

int verb_reshard(const struct ctl *c, struct err *e)
{
	struct reshard x = {.compression = (int)c->compress};
	struct layout *l = NULL;
	int r;

	/* Buffers that come and go with each batch go back at once, whichever thread had them. */
	mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
	mallopt(M_ARENA_MAX, 2);
	if (!c->to)
		return err_set(e, -EINVAL, "reshard needs --to LAYOUT");
	if (!c->as && !c->dry_run)
		return err_set(e, -EINVAL, "reshard needs --as NEWJOB: the result is a new job's");
	r = layout_get(c->to, &l, e);
	if (r < 0)
		return err_wrap(e, r, "--to");
	x.layout = l;
	x.layout_name = c->to;
	r = reshard(c, &x, e);
	targets_free(&x);
	reading_close(x.reading);
	layout_free(l);
	return r < 0 ? r : EXIT_FINE;
}
