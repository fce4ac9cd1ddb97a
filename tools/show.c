/* SPDX-License-Identifier: Apache-2.0 */
/*
 * show.c - `ckptctl show`: one checkpoint. How it stands comes from ckptd, or from the files with
 * --data; its tensors always come from the files.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/tensor.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/print.h"
#include "tools/tensor_list.h"
#include "tools/tensors.h"

/* ---- The document ---- */

static bool is_on_disk(const json_t *c)
{
	return doc_is(c, "disk", "durable") || doc_is(c, "disk", "unlogged") ||
	       doc_is(c, "disk", "expiring");
}

struct shown {
	json_t *doc;             /* all but the tensors */
	struct tensors *tensors; /* NULL: they cannot be read from here */
};

static void shown_free(struct shown *s)
{
	json_decref(s->doc);
	tensors_free(s->tensors);
}

/* 0 also when there is nothing to be read from here: why then says it. */
static int add_tensors(const struct ctl *ctl, struct shown *ret, const json_t *doc,
		       const json_t *job, const json_t *c, json_t *problems, struct err *why,
		       struct err *e)
{
	struct checkpoint_id id = { .step = doc_number(c, "step") };
	const char *said = doc_text(doc, "data");
	json_t *files = NULL;
	struct data d;
	int r;

	if (doc_is(c, "disk", "damaged"))
		return 0; /* the checkpoint's reason says all */
	if (!is_on_disk(c)) {
		err_set(why, CKPT_ENOTFOUND, "%s",
			doc_is(c, "disk", "gone")
				? "its files are gone: its tensors cannot be shown"
				: "its tensors can be shown only when it is on disk");
		return 0;
	}
	if (!doc_id(job, "id", id.job.b) || !doc_id(c, "attempt", id.attempt.b))
		return err_set(e, CKPT_EPROTO, "the checkpoint's id is malformed: are ckptd and "
			       "ckptctl of one version?");
	if (ctl_offline(ctl)) {
		r = data_open(ctl->data, &d, e);
		if (r < 0)
			return r;
	} else {
		/* A ckptd that is too old to say its folder leaves the usual ones. */
		r = data_open(said[0] ? said : ctl->data, &d, why);
		if (r < 0)
			return 0; /* why says it */
	}
	r = tensors_read(&d, &id, ctl->tensor, &ret->tensors, &files, problems, why);
	if (r == 0) {
		json_object_set_new(ret->doc, "files", files);
		json_object_set_new(ret->doc, "tensors", json_array()); /* said one by one */
	}
	data_close(&d);
	if (r < 0 && r != CKPT_ENOTFOUND && r != -EACCES)
		return err_set(e, r, "%s", why->text);
	return 0;
}

/* {job, id, uid, checkpoint, files, tensors, problems, note} */
static int show_document(const struct ctl *ctl, struct shown *ret, struct err *e)
{
	json_t *doc = NULL, *job = NULL, *c = NULL, *problems;
	struct err why = { 0 };
	int r = status_document(ctl, ctl->args[0], &doc, e);

	if (r == 0)
		r = doc_only_job(doc, ctl->args[0], &job, e);
	if (r == 0)
		r = doc_find_trusted(job, ctl->n_args > 1 ? ctl->args[1] : NULL,
				     (enum trust_level)ctl->min_trust, &c, e);
	if (r < 0) {
		json_decref(doc);
		return r;
	}
	problems = json_array();
	ret->doc = json_pack("{s:i, s:O, s:O, s:O, s:O, s:O, s:n, s:n}", "schema", 2, "source",
		      json_object_get(doc, "source"), "job", json_object_get(job, "job"), "id",
		      json_object_get(job, "id"), "uid", json_object_get(job, "uid"), "checkpoint",
		      c, "files", "tensors");
	if (doc_is(c, "disk", "damaged"))
		json_array_append(problems, json_object_get(c, "reason"));
	r = add_tensors(ctl, ret, doc, job, c, problems, &why, e);
	if (why.code)
		json_object_set_new(ret->doc, "note", doc_name(why.text, strlen(why.text)));
	json_object_set_new(ret->doc, "problems", problems);
	json_decref(doc);
	return r;
}

static int walk(void *from, const struct tensor_sink *to, struct err *e)
{
	const struct tensors *all = from;
	struct tensor t;
	size_t at = 0;

	(void)e;
	while (tensors_next(all, &at, &t)) {
		const struct tensor_head head = {&t.piece, t.bytes, t.held, t.n, true};

		to->tensor(to->arg, &head);
		for (size_t k = 0; k < t.n; k++) {
			struct shard s;
			uint32_t rank;

			tensors_piece(all, &t, k, &s, &rank);
			to->piece(to->arg, &s, rank);
		}
	}
	return 0;
}

/* ---- For people ---- */

static void print_tiers(const json_t *c)
{
	const json_t *memory = json_object_get(c, "memory");

	say("tiers     memory: %s, disk: %s%s",
	    !memory                ? "not known without ckptd"
	    : json_is_true(memory) ? "yes"
				   : "no",
	    doc_disk_word(c)[0] ? doc_disk_word(c) : "no",
	    doc_flag(c, "suspect") ? " (damaged: 'ckptctl verify' says where)" : "");
}

static void print_head(const json_t *o)
{
	const json_t *c = json_object_get(o, "checkpoint"), *f = json_object_get(o, "files");
	char a[TEXT_MAX], b[TEXT_MAX], when[TEXT_MAX + 8] = "";

	if (doc_number(c, "time_ns"))
		snprintf(when, sizeof(when), " %s ago", text_age(a, doc_number(c, "time_ns")));
	say("job       %s (id %s, uid %" PRIu64 ")", doc_text(o, "job"), doc_text(o, "id"),
	    doc_number(o, "uid"));
	say("step      %" PRIu64 " of epoch %" PRIu64 ", %s%s%s%s", doc_number(c, "step"),
	    doc_number(c, "epoch"), doc_text(c, "state"), when,
	    doc_flag(c, "base") ? ", base of the epoch" : "",
	    doc_flag(c, "pinned") ? ", pinned" : "");
	say("attempt   %s", doc_text(c, "attempt"));
	say("layout    %s", doc_text(c, "layout"));
	say("root      %s", doc_text(c, "root"));
	say("ranks     %" PRIu64, doc_number(c, "world"));
	print_tiers(c);
	say("size      %s", text_bytes(a, doc_number(c, "bytes")));
	if (json_is_object(f))
		say("files     %s in %s/%s", text_bytes(b, doc_number(f, "stored")),
		    doc_text(f, "data"), doc_text(f, "path"));
	if (doc_text(c, "trust")[0])
		say("trust     %s%s", doc_text(c, "trust"),
		    doc_flag(c, "doubted") ? ", doubted" : "");
	if (doc_text(c, "reason")[0])
		say("note      %s", doc_text(c, "reason"));
	if (doc_text(o, "note")[0])
		say("note      %s", doc_text(o, "note"));
}

static int print_ranks(const json_t *files)
{
	struct table *t = table_new("RANK> IMAGE> STORED> CHUNKS> BLOBS");
	char text[1024], size[TEXT_MAX];
	json_t *o, *b;
	size_t i, k, used;

	json_array_foreach(json_object_get(files, "ranks"), i, o) {
		table_cell(t, "%" PRIu64, doc_number(o, "rank"));
		table_cell(t, "%s", text_bytes(size, doc_number(o, "image_bytes")));
		table_cell(t, "%s", text_bytes(size, doc_number(o, "stored")));
		table_cell(t, "%" PRIu64, doc_number(o, "chunks"));
		used = 0;
		text[0] = '\0';
		json_array_foreach(json_object_get(o, "blobs"), k, b) if (used < sizeof(text))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s (%s)",
						 k ? ", " : "", doc_text(b, "name"),
						 text_bytes(size, doc_number(b, "bytes")));
		table_cell(t, "%s", text);
	}
	return table_end(t);
}

static int print_show(const struct ctl *c, const struct shown *s, struct err *e)
{
	const json_t *files = json_object_get(s->doc, "files");
	int r = 0;

	if (c->talk < 0)
		return s->tensors ? tensor_list_names(walk, s->tensors, e) : 0;
	print_head(s->doc);
	if (json_is_object(files)) {
		putchar('\n');
		r = print_ranks(files);
		if (r < 0)
			return err_code(e, r, "print the ranks");
	}
	if (s->tensors && tensors_pieces(s->tensors) > 0) {
		putchar('\n');
		return tensor_list_print(walk, s->tensors, c->talk > 0 || c->tensor, e);
	}
	if (s->tensors)
		say("no tensor%s%s%s", c->tensor ? " is called like '" : "",
		    c->tensor ? c->tensor : "", c->tensor ? "'" : "");
	return 0;
}

int verb_show(const struct ctl *c, struct err *e)
{
	struct shown s = {0};
	json_t *p, *problems;
	int found, r = show_document(c, &s, e);
	size_t i;

	if (r < 0) {
		shown_free(&s);
		return r;
	}
	problems = json_object_get(s.doc, "problems");
	found = json_array_size(problems) ? EXIT_PROBLEM : EXIT_FINE;
	if (c->json) {
		r = tensor_list_document(s.doc, s.tensors ? walk : NULL, s.tensors, e);
	} else {
		r = print_show(c, &s, e);
		json_array_foreach(problems, i, p)
			complain("%s", json_string_value(p));
	}
	shown_free(&s);
	return r < 0 ? r : found;
}
