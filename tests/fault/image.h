/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - file systems in memory: made, recorded while they are written to, rebuilt as they
 * were at any point of the record with some of the unflushed writes missing, and mounted.
 *
 * Everything lies in memfds and a mount namespace of this process and goes with it. Needs root,
 * /dev/fuse and loop devices: image_usable() names what is missing.
 */
#ifndef TESTS_FAULT_IMAGE_H
#define TESTS_FAULT_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct file_system {
	const char *name;       /* for mount(2) */
	const char *const *mkfs; /* words of the command before the image's path */
	const char *options;    /* of mount(2) */
	uint64_t bytes;         /* of the image */
	uint32_t atom;          /* bytes that the disk writes whole or not at all */
	uint64_t whole;         /* the first bytes are written whole: see image.c */
};
extern const struct file_system file_system_ext4, file_system_xfs;

/* Also enters a mount namespace of its own. false: ret_why says what is missing. */
bool image_usable(const struct file_system *fs, char *ret_why, size_t size);

/* A memfd with an empty file system, or of zeroes (fs NULL). Aborts when it cannot be had. */
int image_new(const struct file_system *fs, uint64_t bytes);
/* "/proc/<pid>/fd/<fd>": a path by which other programs of ours reach it. */
const char *image_path(int fd, char buf[64]);
/* Makes `to` equal to `from`, holes stay holes. */
void image_copy(int from, int to, uint64_t bytes);
/* Through a loop device that goes with the mount. */
MUST_CHECK int image_mount(const struct file_system *fs, const char *path, const char *where,
			   struct err *e);
MUST_CHECK int image_umount(const char *where, struct err *e);

/* ---- Recording ---- */

struct recording {
	const struct file_system *fs;
	int base;       /* as the image was before */
	int image, log; /* while recording */
	pid_t recorder;
	char *dir;
	char mount_fuse[128], mount_data[128];
	/* Afterwards: */
	uint8_t *bytes; /* the record */
	size_t len;
	struct block *blocks;
	size_t n_blocks, n_flushes;
};
struct block {
	uint64_t position; /* bytes of the record before it */
	bool flush;
	uint64_t offset;
	uint32_t length;
	const uint8_t *bytes;
};

/* Mounts an empty file system on mount_data, recorded from now on. dir: for mount points. */
MUST_CHECK int recording_start(struct recording *r, const struct file_system *fs, const char *dir,
			       struct err *e);
/* Bytes of the record so far: what was flushed until now stands before it. Any process. */
uint64_t recording_position(const struct recording *r);
MUST_CHECK int recording_stop(struct recording *r, struct err *e);
void recording_free(struct recording *r);

/* ---- Replay ---- */

enum loss {
	LOSS_ALL,  /* everything that was not flushed is gone */
	LOSS_NONE, /* everything arrived */
	LOSS_SOME, /* each write arrived or did not */
	LOSS_TORN, /* and of some only a part of their atoms did */
	LOSSES
};
extern const char *const loss_names[LOSSES];

struct replay {
	const struct recording *recording;
	int stable, scratch; /* stable: all writes before the last flush */
	uint8_t *map;        /* of stable */
	size_t flushed;      /* blocks [0, flushed) are in stable */
};
void replay_init(struct replay *p, const struct recording *r);
void replay_fini(struct replay *p);
/* scratch becomes the disk as it may be found when power is lost before block `point`. Points
 * must not fall. */
void replay_to(struct replay *p, size_t point, enum loss loss, uint64_t seed);

#endif
