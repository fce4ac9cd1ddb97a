/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_int.h - the simulated disk's parts: contents of one file, names, handles.
 */
#ifndef TESTS_SIM_DISK_INT_H
#define TESTS_SIM_DISK_INT_H

#include "tests/sim/disk.h"
#include "tests/sim/life.h"

/* ---- Contents (disk_content.c) ---- */

struct change {
	uint64_t offset, len;
	uint8_t *bytes; /* NULL: zeros */
	uint64_t size;  /* of the file afterwards */
};

struct extent {
	uint64_t lo, hi;
};

/* Bytes between size and cap are zero. */
struct content {
	uint8_t *live, *stable;
	uint64_t size, stable_size, cap, stable_cap;
	uint64_t reserved; /* bytes that allocate() promised */
	struct change *changes; /* since the last sync */
	size_t n_changes, cap_changes;
	struct extent *damage;
	size_t n_damage, cap_damage;
};

void content_free(struct content *c);
/* Live at once, stable after content_sync(). bytes NULL: zeros. */
void content_write(struct content *c, uint64_t offset, const void *bytes, uint64_t len);
void content_resize(struct content *c, uint64_t size);
void content_sync(struct content *c);
void content_sync_failed(struct content *c, struct world *w, uint32_t sector);
void content_power_loss(struct content *c, struct world *w, uint32_t sector);
void content_damage(struct content *c, uint64_t lo, uint64_t hi);
void content_flip(struct content *c, uint64_t offset, unsigned bit);

/* ---- Inodes and names (disk_names.c) ---- */

struct name {
	char *name;
	struct inode *inode;
};

struct folder {
	struct name *live, *stable;
	size_t n_live, n_stable, cap_live, cap_stable;
};

struct inode {
	struct list link; /* in the disk's */
	uint64_t number;
	bool is_dir;
	enum disk_class class; /* of its newest name */
	bool heir; /* took the name of one that was damaged or unreadable */
	bool unreadable; /* a read or an open of it was made to fail since it got its name */
	bool reached; /* scratch of a walk */
	bool marked;  /* scratch of a sync or a power loss: see there */
	struct content content;
	struct folder folder;
	unsigned opens;
	unsigned shared_locks;
	bool exclusive_lock;
	bool exported;      /* a process was given a descriptor of it, which it may have for ever */
	char job[33];       /* whose shard file it was first; empty: it was none */
};

/* A change of names: at most two entries in at most three folders that it depends on. */
struct name_change {
	struct {
		struct inode *folder, *inode; /* inode NULL: taken away */
		char *name;
	} entry[2];
	int n_entries;
	struct inode *also; /* a folder that the change depends on without changing it */
};

struct names {
	struct list inodes;
	struct inode *root;
	uint64_t next_number;
	struct name_change *changes; /* since each folder's last sync, in order */
	size_t n_changes, cap_changes;
};

void names_init(struct names *n);
void names_free(struct names *n);
struct inode *inode_new(struct names *n, bool is_dir);
/* NULL when there is none. */
struct inode *names_find(struct names *n, const char *path);
struct inode *folder_get(const struct inode *folder, const char *name);
/* The folder that path lies in and the last part of path; NULL when the folder is not there. */
struct inode *names_parent(struct names *n, const char *path, const char **ret_name);
uint64_t names_links(struct names *n, const struct inode *inode);
/* One entry, or one away and one there (rename); `also` may be NULL. */
void names_set(struct names *n, struct inode *folder, const char *name, struct inode *inode,
	       struct inode *also);
void names_move(struct names *n, struct inode *from, const char *from_name, struct inode *to,
		const char *to_name, struct inode *inode);
void names_sync(struct names *n, struct inode *folder);
/* A sync that failed: a random prefix of the folder's changes is stable, the rest still waits. */
void names_sync_failed(struct names *n, struct inode *folder, struct world *w);
void names_power_loss(struct names *n, struct world *w);
/* Frees inodes that no name, live or stable or waiting, and no handle leads to. */
void names_collect(struct names *n);

/* ---- Handles and the disk (disk.c, disk_file.c, disk_dir.c, disk_io.c) ---- */

struct handle {
	struct disk_file file;
	struct list link;
	struct inode *inode;
	unsigned flags;
	bool locked, exclusive;
	bool busy;     /* one thread at a time */
	bool sync_failed;
	bool stale;         /* FAULT_STALE */
	unsigned in_flight; /* queued transfers */
	struct life *owner; /* NULL: an exported descriptor; or the driver's */
};

struct disk_queue {
	struct sim_disk *disk;
	struct list link;
	struct life *owner;
	unsigned depth, in_flight;
	struct disk_io **ios;
};

/* Names being walked: kept here, because the walker may die in the middle. */
struct walk {
	struct list link;
	struct name *names; /* inode: not NULL for a folder */
	size_t n;
};

struct sim_disk {
	struct disk disk;
	struct world *world;
	struct disk_options options;
	struct names names;
	struct list handles, queues, users, walks;
	uint32_t injected[DISK_FAULTS];
	const char *leak; /* disk_leak() */
};

static inline struct sim_disk *sim_disk_of(struct disk *d)
{
	return container_of(d, struct sim_disk, disk);
}
static inline struct handle *handle_of(struct disk_file *f)
{
	return container_of(f, struct handle, file);
}

/* Whether this call has the fault; counts it against the budget. */
bool disk_fault(struct sim_disk *d, enum disk_class c, enum disk_fault f);
bool disk_may_be_damaged(enum disk_class c);
/* A call on a name that fails: half of the time it was done nevertheless. */
bool disk_name_fault(struct sim_disk *d, const char *path, bool *ret_done);
int disk_done(struct sim_disk *d, const char *path, int r);
/* The end of the life that runs now will close what it has open on this disk. */
void disk_track(struct sim_disk *d);
void handle_free(struct handle *h);
uint64_t disk_used(struct sim_disk *d);
void walk_free(struct walk *walk);

/* Transfers without waiting: the effect of a read or write, with its faults. Bytes or -errno. */
int handle_read(struct handle *h, void *buf, size_t len, uint64_t offset);
int handle_write(struct handle *h, const void *buf, size_t len, uint64_t offset);

int sim_file_open(struct disk *disk, const char *path, unsigned flags, struct disk_file **ret);
void sim_file_close(struct disk_file *f);
int sim_file_size(struct disk_file *f, uint64_t *ret);
int sim_file_links(struct disk_file *f, uint64_t *ret);
int sim_file_is_private(struct disk_file *f, bool *ret);
int sim_file_allocate(struct disk_file *f, uint64_t length);
int sim_file_truncate(struct disk_file *f, uint64_t length);
int sim_file_sync(struct disk_file *f);
int sim_file_read(struct disk_file *f, void *buf, size_t len, uint64_t offset);
int sim_file_write(struct disk_file *f, const void *buf, size_t len, uint64_t offset);
int sim_file_lock(struct disk_file *f, bool exclusive);
int sim_file_export_fd(struct disk_file *f);
int sim_file_in_use(struct disk_file *f, bool *ret);
void sim_file_forget(struct disk_file *f);

int sim_dir_mkdir(struct disk *disk, const char *path);
int sim_dir_rmdir(struct disk *disk, const char *path);
int sim_dir_rename(struct disk *disk, const char *from, const char *to);
int sim_dir_link(struct disk *disk, const char *from, const char *to);
int sim_dir_unlink(struct disk *disk, const char *path);
int sim_dir_sync_dir(struct disk *disk, const char *path);
int sim_dir_list(struct disk *disk, const char *path, disk_name_fn *fn, void *arg);
int sim_dir_space(struct disk *disk, uint64_t *ret_free, uint64_t *ret_total);

int sim_queue_open(struct disk *disk, unsigned depth, struct disk_queue **ret);
void sim_queue_close(struct disk_queue *q);
int sim_queue_submit(struct disk_queue *q, struct disk_io *io);
int sim_queue_reap(struct disk_queue *q, struct disk_io **ret);
int sim_queue_register(struct disk_queue *q, void *base, uint64_t length);
void sim_queue_unregister(struct disk_queue *q, void *base);
/* Its process died: some of what was in flight was done. */
void sim_queue_abandon(struct disk_queue *q);

#endif
