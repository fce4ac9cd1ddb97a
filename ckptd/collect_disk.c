/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_disk.c - disks: load and latency, and errors, of /sys/block.
 *
 *   1. A disk is what has hardware behind it, and whatever holds ckptd's own folder (a RAID, a
 *      volume), which comes first.
 *   2. Errors are what the SCSI layer counts, what members of a RAID count, and each time that an
 *      NVMe controller is found in another state than "live" after it was: it is being reset, or
 *      is dead. Errors of which no file tells come as kernel messages.
 *
 * On the source's thread: a disk that dies may hang it.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <syslog.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/collect_file.h"
#include "ckptd/collect_source.h"

#define BLOCK  "/sys/block"
#define SECOND 1000000000.0
enum { SECTOR = 512, NAME_SIZE = 48 };

struct one_disk {
	char name[NAME_SIZE];
	struct collect_counter ops, sectors, written, ms, flushes, flush_ms;
	struct collect_sum errors; /* SCSI, RAID */
	bool was_live;
	uint64_t not_live; /* times (2) */
};

struct disks {
	const struct collect_config *config;
	char own[NAME_SIZE]; /* (1); "": cannot be told */
	size_t n;
	struct one_disk disks[COLLECT_DEVICES_MAX];
	uint64_t before_ns;
	/* for one read */
	struct collect_out *out;
	struct one_disk *of; /* whose members are walked */
	uint64_t written, ops, ms;
	unsigned seen;
};

/* The disk that a link of /sys/dev/block names: ".../block/sda/sda1", ".../block/nvme0n1". */
static void disk_of_link(char *link, char name[NAME_SIZE])
{
	char *at = strstr(link, "/block/");

	for (char *more; at && (more = strstr(at + 1, "/block/"));)
		at = more;
	if (!at)
		return;
	at += strlen("/block/");
	at[strcspn(at, "/")] = '\0';
	if (strlen(at) < NAME_SIZE)
		memcpy(name, at, strlen(at) + 1);
}

static void find_own(struct disks *d)
{
	char path[COLLECT_PATH_MAX], link[COLLECT_PATH_MAX];
	struct stat st;
	ssize_t n;

	d->own[0] = '\0';
	if (stat(d->config->data, &st) != 0)
		return;
	snprintf(path, sizeof(path), "%s/sys/dev/block/%u:%u", d->config->root, major(st.st_dev),
		 minor(st.st_dev));
	n = readlink(path, link, sizeof(link) - 1);
	if (n <= 0)
		return; /* a network file system, an overlay */
	link[n] = '\0';
	disk_of_link(link, d->own);
}

static int open_disks(const struct collect_config *c, struct collect_out *out, void **ret,
		      struct err *e)
{
	struct disks *d = alloc_zero(sizeof(*d));

	(void)out;
	if (!d)
		return err_code(e, -ENOMEM, "watch disks");
	d->config = c;
	find_own(d);
	*ret = d;
	return 0;
}

static struct one_disk *find_disk(struct disks *d, const char *name)
{
	struct one_disk *o;

	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->disks[i].name, name) == 0)
			return &d->disks[i];
	if (d->n == COLLECT_DEVICES_MAX || strlen(name) >= NAME_SIZE)
		return NULL;
	o = &d->disks[d->n++];
	snprintf(o->name, sizeof(o->name), "%s", name);
	collect_name(d->out, (uint32_t)(o - d->disks), 'd', name);
	return o;
}

/* Reads, writes and flushes: how many, sectors, milliseconds (Documentation/block/stat.rst). */
struct io_stat {
	unsigned long long f[17];
};
enum {
	READS = 0,
	READ_SECTORS = 2,
	READ_MS = 3,
	WRITES = 4,
	WRITE_SECTORS = 6,
	WRITE_MS = 7,
	FLUSHES = 15,
	FLUSH_MS = 16
};

static bool read_stat(const struct disks *d, const char *name, struct io_stat *ret)
{
	char text[512], *at = text;
	int used, n = 0;

	*ret = (struct io_stat){0};
	if (collect_text(text, sizeof(text), "%s" BLOCK "/%s/stat", d->config->root, name) <= 0)
		return false;
	while (n < 17 && sscanf(at, " %20llu%n", &ret->f[n], &used) == 1) {
		at += used;
		n++;
	}
	return n > WRITE_MS;
}

static void each_member(void *arg, const char *name)
{
	struct disks *d = arg;
	uint64_t v;

	if (strncmp(name, "dev-", 4) == 0 &&
	    collect_number(&v, "%s" BLOCK "/%s/md/%s/errors", d->config->root, d->of->name, name))
		collect_sum_file(&d->of->errors, name, v);
}

/* (2) */
static void read_errors(struct disks *d, struct one_disk *o)
{
	const char *root = d->config->root;
	char state[32];
	uint64_t v;

	d->of = o;
	collect_sum_begin(&o->errors);
	if (collect_number(&v, "%s" BLOCK "/%s/device/ioerr_cnt", root, o->name))
		collect_sum_file(&o->errors, "ioerr_cnt", v);
	ignore_result(collect_each(each_member, d, "%s" BLOCK "/%s/md", root, o->name)
		      /* most are no RAID */);
	if (strncmp(o->name, "nvme", 4) != 0 ||
	    collect_text(state, sizeof(state), "%s" BLOCK "/%s/device/state", root, o->name) <= 0)
		return;
	if (o->was_live && strcmp(state, "live") != 0) {
		o->not_live++;
		collect_say(d->out, LOG_WARNING, "disk '%s': its controller is %.20s", o->name,
			    state);
	}
	o->was_live = strcmp(state, "live") == 0;
}

static void read_disk(struct disks *d, const char *name)
{
	struct io_stat st;
	struct one_disk *o;
	uint64_t ops, ms, flush_ms, sectors, written;
	struct sample *s;
	bool first;

	if (!read_stat(d, name, &st))
		return;
	o = find_disk(d, name);
	if (!o)
		return;
	first = !o->ops.known;
	/* Flushes take their time without moving bytes; they are operations too. */
	ops = collect_count(&o->ops, st.f[READS] + st.f[WRITES]) +
	      collect_count(&o->flushes, st.f[FLUSHES]);
	ms = collect_count(&o->ms, st.f[READ_MS] + st.f[WRITE_MS]);
	flush_ms = collect_count(&o->flush_ms, st.f[FLUSH_MS]);
	sectors = collect_count(&o->sectors, st.f[READ_SECTORS] + st.f[WRITE_SECTORS]);
	written = collect_count(&o->written, st.f[WRITE_SECTORS]);
	read_errors(d, o);
	d->seen++;
	if (first)
		return; /* nothing can be said of the time before */
	s = collect_add(d->out, SAMPLE_DISK);
	s->device = (uint32_t)(o - d->disks);
	s->disk.ops = ops;
	s->disk.bytes = sectors * SECTOR;
	s->disk.busy_ns = (ms + flush_ms) * 1000000;
	s->disk.errors = o->errors.sum + o->not_live;
	d->ops += ops;
	d->ms += ms + flush_ms;
	d->written += written;
}

static void each_disk(void *arg, const char *name)
{
	struct disks *d = arg;

	if (strcmp(name, d->own) != 0 &&
	    collect_exists("%s" BLOCK "/%s/device", d->config->root, name))
		read_disk(d, name);
}

static int read_source(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	struct disks *d = state;
	double seconds = d->before_ns ? (double)(now_ns - d->before_ns) / SECOND : 0;
	int r;

	d->out = out;
	d->ops = d->ms = d->written = 0;
	d->seen = 0;
	if (d->own[0])
		read_disk(d, d->own); /* (1) */
	r = collect_each(each_disk, d, "%s" BLOCK, d->config->root);
	if (r < 0 && r != -ENOENT)
		return err_code(e, r, "read '%s" BLOCK "'", d->config->root);
	if (seconds > 0 && d->seen) {
		out->metrics[METRIC_DISK_WRITE] = (float)((double)d->written * SECTOR / seconds);
		if (d->ops)
			out->metrics[METRIC_DISK_LATENCY] =
				(float)((double)d->ms / 1000 / (double)d->ops);
	}
	d->before_ns = now_ns;
	collect_state(out, "%u disk%s%s%s", d->seen, d->seen == 1 ? "" : "s",
		      d->own[0] ? "; the data folder is on " : "", d->own);
	return 0;
}

const struct collect_source collect_disk = {
	.id = COLLECT_DISK, .open = open_disks, .read = read_source, .close = alloc_free};
