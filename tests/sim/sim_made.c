/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_made.c - a job that a tool makes in incoming/, beside the running ckptd, and that a person
 * has ckptd adopt: the tool is a life of its own, which may be killed at any moment.
 *
 * What is held against ckptd: once it has said that the job is adopted, each later life of it has
 * the job, and its checkpoint can be restored, unless the disk damaged its files (I7, I8).
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/node_priv.h"
#include "codec/digest.h"
#include "coord/record.h"
#include "storage/commit_file.h"
#include "storage/staging.h"
#include "tests/sim/byte_table.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define IMAGE_BYTES 9000u

/* ---- The tool ---- */

static void fill_id(struct sim *s, uint8_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = (uint8_t)world_random(s->w, 256);
}

static int write_image(struct shard_writer *w, struct disk *d, const void *image)
{
	static const atomic_bool never;
	struct disk_queue *q = NULL;
	int r = d->ops->queue_open(d, 4, &q);

	if (r < 0)
		return r;
	r = shard_write_image(w, q, image, 1, &never, NULL);
	d->ops->queue_close(q);
	return r;
}

static int make_shard(struct made *m, struct store *staged, struct shard_footer *ret)
{
	struct geometry g = m->sim->options.geometry;
	uint64_t n = div_up(IMAGE_BYTES, g.leaf);
	CLEANUP_FREE struct digest *leaves = alloc_array(n, sizeof(*leaves));
	uint8_t *image = sim_check(aligned_alloc(DISK_ALIGN, round_up(IMAGE_BYTES, DISK_ALIGN)));
	struct shard_writer *w = NULL;
	void *table = NULL;
	size_t len = 0;
	int r = leaves ? 0 : -ENOMEM;

	memset(image, 'm', round_up(IMAGE_BYTES, DISK_ALIGN));
	if (r == 0)
		digest_leaves(image, IMAGE_BYTES, g.leaf, 0, n - 1, leaves);
	if (r == 0)
		r = byte_table((struct rank_table_parts){.world = 1,
							 .geometry = g,
							 .image_len = IMAGE_BYTES,
							 .leaves = leaves},
			       &table, &len);
	if (r == 0)
		r = shard_begin(staged, &m->id, 0, IMAGE_BYTES, len, &w, NULL);
	if (r == 0) {
		r = write_image(w, staged->disk, image);
		if (r < 0)
			shard_abandon(w);
		else
			r = shard_finish(w, table, len, ret, NULL);
	}
	alloc_free(table);
	free(image);
	return r;
}

static int make(struct made *m, struct store *staged)
{
	struct record r = {.type = RECORD_JOB, .incarnation = 1};
	struct shard_footer f;
	struct rank_line line;
	struct commit_file c = {.id = m->id,
				.uid = m->uid,
				.world = 1,
				.incarnation = 1,
				.epoch = 1,
				.record_n = 3,
				.bytes = IMAGE_BYTES,
				.shards = &f};
	size_t len = 0;
	int rc = make_shard(m, staged, &f);

	if (rc < 0)
		return rc;
	line = (struct rank_line){0, f.table_len, f.table};
	c.root = root_digest(&line, 1);
	memcpy(c.job_name, m->name, sizeof(m->name));
	r.job.id = m->id.job;
	r.job.uid = m->uid;
	memcpy(r.job.name, m->name, sizeof(m->name));
	rc = record_encode(&r, &c.job_record, &len);
	c.job_record_len = (uint32_t)len;
	if (rc == 0)
		rc = commit_publish(staged, &c, NULL);
	alloc_free(c.job_record);
	return rc;
}

static void tool_main(void *arg)
{
	struct made *m = arg;
	struct staging_disk d;
	struct store staged = {.geometry = m->sim->options.geometry,
			       .transfer = m->sim->options.transfer};

	staging_disk_init(&d, m->sim->disk);
	staged.disk = &d.base;
	if (staging_make_folder(&staged, NULL) == 0)
		m->finished = make(m, &staged) == 0;
}

static void start_tool(void *arg)
{
	struct sim *s = arg;
	struct made *m = &s->made;
	struct life_options o = {
		.name = "tool", .disk = s->disk, .clock_zero_ns = s->w->now_ns / 2};

	if (m->life || !s->powered || !s->trouble || !s->daemon.ready)
		return;
	m->life = life_start(s->w, &o, tool_main, m);
}

void made_begin(struct sim *s)
{
	struct made *m = &s->made;

	if (!s->profile->admin || (s->profile->admin > 2 && !world_one_in(s->w, 3)))
		return;
	m->sim = s;
	fill_id(s, m->id.job.b, sizeof(m->id.job.b));
	fill_id(s, m->id.attempt.b, sizeof(m->id.attempt.b));
	m->id.step = 1;
	m->uid = s->jobs[0].uid;
	snprintf(m->name, sizeof(m->name), "made");
	oracle_find(&s->oracle, &m->id.job)->made = true;
	world_after(s->w, world_random(s->w, s->profile->trouble_ns / 2), NULL, start_tool, s);
}

void made_kill(struct sim *s)
{
	if (s->made.life)
		life_free(s->made.life);
	s->made.life = NULL;
}

/* ---- The person who has it adopted ---- */

bool made_is_for(const struct rank *r)
{
	const struct made *m = &r->sim->made;

	return m->finished && !m->told && r->job->uid == m->uid;
}

void made_adopted(struct rank *r)
{
	struct sim *s = r->sim;

	s->made.told = true;
	sim_count(s, adopted);
	world_note(s->w, "adopted", r->rank, 0, 0);
	made_check(s);
}

static bool hit(struct sim *s, const char *path)
{
	return disk_is_damaged(s->disk, path) || disk_was_unreadable(s->disk, path);
}

static bool files_hit(struct sim *s)
{
	char shard[DISK_PATH_MAX + 1], commit[DISK_PATH_MAX + 1], folder[DISK_PATH_MAX + 1];

	path_shard(shard, &s->made.id, 0);
	path_commit(commit, &s->made.id);
	path_checkpoint(folder, &s->made.id);
	return hit(s, shard) || hit(s, commit) || hit(s, folder);
}

void made_check(struct sim *s)
{
	struct made *m = &s->made;
	struct checkpoint *c;
	struct job *j;

	if (!m->told || !s->daemon.ready || daemon_refuses(s, &m->id.job) || files_hit(s))
		return;
	j = job_find_id(s->daemon.node, &m->id.job);
	c = j ? checkpoint_find_attempt(j, m->id.step, &m->id.attempt) : NULL;
	if (!c || !checkpoint_restorable(c))
		sim_accuse(s, "I7, I8: job '%s', made by a tool, was adopted, and %s", m->name,
			   !j   ? "is gone"
			   : !c ? "its checkpoint is gone"
				: "its checkpoint cannot be restored");
}
