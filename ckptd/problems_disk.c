/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems_disk.c - whether the disk has room for what jobs save next: `disk-full` when a
 * checkpoint found none, `disk-low` before that.
 *
 * 1. disk-full ends when a checkpoint of the job is on disk, or a look finds room for one: that the
 *    refused one is not wanted any more makes no room.
 * 2. disk-low begins, for a job with ranks, when a launch of it would be refused: what a Prepare
 *    asks for (disk_need.h) is more than there is with all that gives way to it. The room of the
 *    next save is part of that. It ends when there is room.
 * 3. What a checkpoint needs is what the last Prepare that knew all ranks has counted; of a job
 *    that was taken up by this start, what its largest one on disk takes, or has in memory.
 * 4. A checkpoint that is being written holds room and is not counted as kept yet. So that one
 *    write does not make the problem come and go, its bytes count for the job where the problem
 *    would begin, and against it where it would end.
 * 5. folder-away is the same as disk-full for a data folder that is gone, and ends when a
 * checkpoint is on disk or none waits for the folder.
 *
 * Failure modes: a look that fails, or while files are taken away, decides nothing; the next one
 * is seconds away.
 *
 * Threads: the loop; only the file system is asked on a worker.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "base/bytes.h"
#include "ckptd/disk_need.h"
#include "ckptd/node_priv.h"
#include "ckptd/problems_priv.h"
#include "storage/spare.h"

#define MIB (1u << 20)

struct room {
	uint64_t bytes;   /* that may be written now: free, and of spare files */
	uint64_t reserve; /* that stay free beside it */
};

static void stays_in_memory(struct job *j, enum job_problem p, uint64_t step, const char *until,
			    const char *why)
{
	snprintf(j->disk_text, sizeof(j->disk_text), "%s", why);
	j->folder_away = p == PROBLEM_FOLDER;
	if (j->folder_away)
		problem_over(j, PROBLEM_DISK, "its data folder is away");
	else
		problem_over(j, PROBLEM_FOLDER, "it is back, and has no room");
	problem_found(
		j,
		&(struct problem_found){
			.problem = p, .level = 3, .rank = PROBLEM_NO_RANK, .step = step},
		"step %llu stays in memory until %s: %s", (unsigned long long)step, until, why);
}

void problems_disk_full(struct job *j, uint64_t step, const char *why)
{
	stays_in_memory(j, PROBLEM_DISK, step, "there is room", why);
}

void problems_folder_away(struct job *j, uint64_t step, const char *why)
{
	stays_in_memory(j, PROBLEM_FOLDER, step, "its data folder is back", why);
}

void problems_disk_written(const struct checkpoint *c)
{
	c->job->folder_away = false;
	problem_over(c->job, PROBLEM_FOLDER, "step %llu is on disk", (unsigned long long)c->step);
	c->job->disk_text[0] = '\0';
	problem_over(c->job, PROBLEM_DISK, "step %llu is on disk", (unsigned long long)c->step);
}

/* (3) */
static uint64_t next_bytes(const struct job *j)
{
	const struct checkpoint *c;
	uint64_t most = 0, image;

	if (j->next_bytes)
		return j->next_bytes;
	list_each(c, &j->checkpoints, link) {
		image = 0;
		for (uint32_t r = 0; r < c->world && c->sealed; r++)
			if (!size_add(image, c->shards[r].image_len, &image))
				return 0;
		most = max_u64(most, c->disk_bytes ? c->disk_bytes : image);
	}
	return most;
}

static void look_at_full(struct job *j, const struct room *room, uint64_t one)
{
	if (!problems_stand(j, PROBLEM_DISK) || j->lacks_room || j->persist || room->bytes < one)
		return;
	j->disk_text[0] = '\0';
	problem_over(j, PROBLEM_DISK, "there is room for a checkpoint of %llu MiB",
		     (unsigned long long)div_up(one, MIB));
}

static void say_low(struct job *j, const struct room *room, uint64_t one, uint64_t needed,
		    uint64_t given)
{
	const char *data = j->node->options.data;
	char text[ERR_TEXT_MAX];

	if (room->bytes < one)
		snprintf(text, sizeof(text),
			 "its next save needs %llu MiB on disk, %llu MiB are left for it beside "
			 "%llu MiB that stay free (storage.disk_reserve): free space where "
			 "'%.120s' is",
			 (unsigned long long)div_up(one, MIB),
			 (unsigned long long)(room->bytes >> 20),
			 (unsigned long long)(room->reserve >> 20), data);
	else
		snprintf(text, sizeof(text),
			 "a launch of it would be refused: its checkpoints need %llu MiB more on "
			 "disk, %llu MiB are left for them beside %llu MiB that stay free "
			 "(storage.disk_reserve): free space where '%.120s' is",
			 (unsigned long long)div_up(needed, MIB), (unsigned long long)(given >> 20),
			 (unsigned long long)(room->reserve >> 20), data);
	problem_found(j,
		      &(struct problem_found){.problem = PROBLEM_DISK_LOW,
					      .level = 4,
					      .rank = PROBLEM_NO_RANK,
					      .step = PROBLEM_NO_STEP},
		      "%s", text);
}

static void look_at_low(struct job *j, const struct room *room, uint64_t one)
{
	bool stands = problems_stand(j, PROBLEM_DISK_LOW);
	uint64_t needed, given, held = j->persist && !stands ? one : 0; /* (4) */
	struct retain_sum sum;

	/* What a Prepare was refused for is a problem of its own. */
	if (!stands && (list_empty(&j->members) || problems_stand(j, PROBLEM_PREPARE)))
		return;
	if (retain_count(j, &sum) < 0 || !size_add(room->bytes, sum.going, &given))
		return;
	needed = disk_need_more(one, disk_need_kept(j->node, sum.went_back), sum.kept);
	if (needed - min_u64(needed, held) > given)
		say_low(j, room, one, needed, given);
	else if (stands)
		problem_over(j, PROBLEM_DISK_LOW, "a launch would find the %llu MiB that it needs",
			     (unsigned long long)div_up(needed, MIB));
}

static void look_run(struct work *w)
{
	struct disk_look *x = container_of(w, struct disk_look, work);
	struct disk *d = x->node->env.disk;
	uint64_t total = 0;

	x->free = 0;
	x->status = d->ops->space(d, &x->free, &total);
}

static void look_done(struct work *w)
{
	struct disk_look *x = container_of(w, struct disk_look, work);
	struct node *n = x->node;
	struct room room = {.reserve = n->options.disk_reserve};
	struct job *j;
	uint64_t one;

	assert(x->runs);
	x->runs = false;
	n->side_works--;
	if (n->stopping || !n->store_open || x->status < 0 ||
	    !size_add(x->free, spare_bytes(&n->store), &room.bytes))
		return;
	room.bytes -= min_u64(room.bytes, room.reserve);
	list_each(j, &n->jobs, link) {
		one = next_bytes(j);
		if (job_stopped(j) || j->retaining)
			continue;
		look_at_full(j, &room, one);
		if (one > 0)
			look_at_low(j, &room, one);
	}
}

/* What the folder was missed for is written again, or is not wanted any more. */
static void look_at_folder(struct job *j)
{
	if (!problems_stand(j, PROBLEM_FOLDER) || j->lacks_room || j->persist || j->rewrite)
		return;
	j->folder_away = false;
	j->disk_text[0] = '\0';
	problem_over(j, PROBLEM_FOLDER, "nothing waits for it any more");
}

void problems_disk_look(struct node *n)
{
	struct disk_look *x = &n->disk_look;
	struct job *j;

	list_each(j, &n->jobs, link)
		look_at_folder(j);
	if (x->runs || n->stopping)
		return;
	x->node = n;
	x->runs = true;
	x->work.run = look_run;
	x->work.done = look_done;
	n->side_works++;
	work_submit(n->env.workers, WORK_META, FAIR_NODE, &x->work);
}
