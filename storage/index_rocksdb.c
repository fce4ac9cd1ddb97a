/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_rocksdb.c - base/index.h over RocksDB's C API; the only file that knows RocksDB.
 *
 *   (1) All entries of a write become visible together or not at all (one WriteBatch, WAL on).
 *   (2) A write with sync that returned 0, and every write before it, survives loss of power.
 *   (3) Bytes that fail RocksDB's checksums are never handed out: CKPT_ECORRUPT instead.
 *   (4) RocksDB is never closed while a call is inside it.
 *
 * Failures
 *   write      RocksDB refuses all writes after a failed one until it is opened again (Debian's
 *              C API has no resume), and the failed batch may be there afterwards. The error means
 *              "unknown" (I10). Reads go on; the next write that is alone opens it again first.
 *   damage     CKPT_ECORRUPT leaves a mark in the folder (index_folder.h): the next open makes a
 *              new one.
 *   open       what does not open because of its contents is renamed to <path>.bad; one such
 *              folder is kept. What does not open because of its surroundings (lock, space,
 *              descriptors, rights) is left alone: a new one would not open either.
 *   abort      RocksDB ends the process when memory runs out, and by assertions, which Debian has
 *              on. Nothing here is the only copy (I8). A database of which two processes died when
 *              they opened it is set aside, so that no daemon dies of it again and again.
 *   bit flips  in the log are found, except one: a length that reaches past the end of the last
 *              32 KiB block of the file looks like the torn tail of a crash, and the records from
 *              there on are dropped silently. What is left is a state that once was; whoever needs
 *              to know compares the index with the files (catalog_check()).
 *
 * Threads: any (WORK_INDEX workers). The mutex guards db, users and broken; it is held while the
 * database is opened again, and not during other calls into RocksDB.
 */
#include <config.h>

#include "storage/index_rocksdb.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "storage/index_folder.h"

/* Small on purpose: all of an idle ckptd stays below 96 MiB. */
#define WRITE_BUFFER (2u << 20) /* bytes; RocksDB keeps up to two */
#define WAL_MAX (8u << 20)      /* bytes of all logs together */
#define BLOCK_CACHE (8u << 20)  /* bytes; index blocks are charged to it too */
#define SST_SIZE (8u << 20)     /* bytes of a table file on the first level */
#define OPEN_FILES 64
#define INFO_LOG (64u << 10)    /* bytes */

#define LOG_LEVEL_FATAL 4
#define WAL_TOLERATE_CORRUPTED_TAIL 0

struct rocks {
	struct index ix;
	struct index_folder folder;
	rocksdb_options_t *options;
	rocksdb_readoptions_t *read;
	rocksdb_writeoptions_t *write, *write_sync;

	pthread_mutex_t write_lock; /* the writer's, before lock */
	pthread_mutex_t lock;
	rocksdb_t *db;  /* NULL: the last attempt to open it again failed */
	unsigned users; /* calls inside RocksDB */
	bool broken;    /* a write failed: none succeeds until it was opened again */
};

/* ---- RocksDB's texts to codes ---- */

static bool ends_with(const char *text, const char *tail)
{
	size_t n = strlen(text), m = strlen(tail);

	return n >= m && memcmp(text + n - m, tail, m) == 0;
}

/* Reasons that lie in the surroundings, not in the database. */
static const int surroundings[] = { ENOSPC, EDQUOT, EMFILE, ENFILE, EACCES,
				    EPERM,  EROFS,  ENOMEM, EFBIG };

static bool in_surroundings(int code)
{
	for (size_t i = 0; i < sizeof(surroundings) / sizeof(surroundings[0]); i++)
		if (code == -surroundings[i])
			return true;
	return code == -EBUSY;
}

/* The C API gives a text only: "<class>: <what>: <text of errno>". */
static int code_of(const char *text)
{
	if (strncmp(text, "Corruption", 10) == 0)
		return CKPT_ECORRUPT;
	if (strncmp(text, "Invalid argument", 16) == 0)
		return -EINVAL;
	if (strncmp(text, "Not implemented", 15) == 0)
		return CKPT_EVERSION;
	if (strncmp(text, "IO error: lock ", 15) == 0 ||
	    strncmp(text, "IO error: While lock file", 25) == 0)
		return -EBUSY;
	for (size_t i = 0; i < sizeof(surroundings) / sizeof(surroundings[0]); i++)
		if (ends_with(text, strerror(surroundings[i])))
			return -surroundings[i];
	return -EIO;
}

/* Takes and frees text; its words become those of e. 0 when text is NULL. */
static int err_from_rocksdb(char *text, struct err *e)
{
	int r;

	if (!text)
		return 0;
	r = code_of(text);
	err_set(e, r, "%s", text);
	rocksdb_free(text);
	return r;
}

/* ---- Options ---- */

static void set_table_options(rocksdb_options_t *o)
{
	rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();
	rocksdb_cache_t *cache = rocksdb_cache_create_lru(BLOCK_CACHE);

	/* A partitioned index in the cache: a lookup in a large database reads one small index
	 * block and one data block of each level, and memory stays bounded whatever its size. */
	rocksdb_block_based_options_set_index_type(
		t, rocksdb_block_based_table_index_type_two_level_index_search);
	rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
	rocksdb_block_based_options_set_block_cache(t, cache);
	rocksdb_options_set_block_based_table_factory(o, t);
	rocksdb_block_based_options_destroy(t);
	rocksdb_cache_destroy(cache); /* o keeps it */
}

static rocksdb_options_t *make_options(void)
{
	rocksdb_options_t *o = rocksdb_options_create();

	rocksdb_options_set_wal_recovery_mode(o, WAL_TOLERATE_CORRUPTED_TAIL);
	rocksdb_options_set_paranoid_checks(o, 1);
	rocksdb_options_set_manual_wal_flush(o, 0);
	rocksdb_options_set_use_fsync(o, 0);

	rocksdb_options_set_write_buffer_size(o, WRITE_BUFFER);
	rocksdb_options_set_max_write_buffer_number(o, 2);
	rocksdb_options_set_max_total_wal_size(o, WAL_MAX);
	rocksdb_options_set_target_file_size_base(o, SST_SIZE);
	rocksdb_options_set_max_bytes_for_level_base(o, 4 * SST_SIZE);
	rocksdb_options_set_max_open_files(o, OPEN_FILES);
	rocksdb_options_set_table_cache_numshardbits(o, 2);
	rocksdb_options_set_max_background_jobs(o, 2);
	rocksdb_options_set_max_manifest_file_size(o, 1 << 20);
	rocksdb_options_set_manifest_preallocation_size(o, 64 << 10);
	set_table_options(o);

	/* There is no way to have none; this leaves its head, written at every open. */
	rocksdb_options_set_info_log_level(o, LOG_LEVEL_FATAL);
	rocksdb_options_set_max_log_file_size(o, INFO_LOG);
	rocksdb_options_set_keep_log_file_num(o, 2);
	rocksdb_options_set_stats_dump_period_sec(o, 0);
	rocksdb_options_set_stats_persist_period_sec(o, 0);
	return o;
}

/* ---- One call at a time on the database, many calls at a time inside it ---- */

/* RocksDB names files by the path that it was given, which nobody else knows. */
static void name_folder(const struct index_folder *f, struct err *e)
{
	char *at = e ? strstr(e->text, f->rocksdb) : NULL;
	char rest[ERR_TEXT_MAX];

	if (!at)
		return;
	snprintf(rest, sizeof(rest), "%s", at + strlen(f->rocksdb));
	snprintf(at, sizeof(e->text) - (size_t)(at - e->text), "%s%s", f->path, rest);
}

static int open_db(struct rocks *r, bool make, struct err *e)
{
	char *text = NULL;
	int ret;

	assert(!r->db && r->users == 0);
	ret = index_folder_before_open(&r->folder, e);
	if (ret < 0)
		return ret;
	rocksdb_options_set_create_if_missing(r->options, make);
	rocksdb_options_set_error_if_exists(r->options, make);
	r->db = rocksdb_open(r->options, r->folder.rocksdb, &text);
	index_folder_after_open(&r->folder);
	assert(!r->db == !!text);
	ret = err_from_rocksdb(text, e);
	if (ret < 0)
		name_folder(&r->folder, e);
	return ret;
}

/* r->lock is held. A failure leaves db NULL: the next call tries again. */
static void open_again(struct rocks *r)
{
	assert(r->broken && r->users == 0);
	if (r->db)
		rocksdb_close(r->db);
	r->db = NULL;
	r->broken = open_db(r, false, NULL) != 0;
}

static int enter(struct rocks *r)
{
	int ret = 0;

	pthread_mutex_lock(&r->lock);
	assert(r->db || (r->broken && r->users == 0));
	if (!r->db)
		open_again(r);
	if (r->db)
		r->users++;
	else
		ret = -EIO;
	pthread_mutex_unlock(&r->lock);
	return ret;
}

static void leave(struct rocks *r)
{
	pthread_mutex_lock(&r->lock);
	assert(r->users > 0 && r->db);
	r->users--;
	pthread_mutex_unlock(&r->lock);
}

/* One writer at a time: a second write to a log that failed trips an assertion of RocksDB's. */
static int enter_to_write(struct rocks *r)
{
	int ret;

	pthread_mutex_lock(&r->write_lock);
	pthread_mutex_lock(&r->lock);
	if (r->broken && r->users == 0)
		open_again(r); /* (4) */
	ret = r->broken ? -EIO : 0;
	pthread_mutex_unlock(&r->lock);
	if (ret == 0)
		ret = enter(r);
	if (ret < 0)
		pthread_mutex_unlock(&r->write_lock);
	return ret;
}

static void leave_after_write(struct rocks *r, bool failed)
{
	pthread_mutex_lock(&r->lock);
	r->broken |= failed;
	pthread_mutex_unlock(&r->lock);
	leave(r);
	pthread_mutex_unlock(&r->write_lock);
}

/* Takes text. A damaged database is made anew when it is opened next: leave the mark. */
static int result_of(struct rocks *r, char *text)
{
	int ret = err_from_rocksdb(text, NULL);

	if (ret == CKPT_ECORRUPT)
		index_folder_mark_damaged(&r->folder);
	return ret;
}

/* ---- index_ops ---- */

static struct rocks *rocks_of(struct index *ix)
{
	struct rocks *r = (struct rocks *)ix;

	assert(r && r->options);
	return r;
}

static int rocks_write(struct index *ix, const struct index_entry *entries, size_t n, bool sync)
{
	struct rocks *r = rocks_of(ix);
	rocksdb_writebatch_t *batch;
	char *text = NULL;
	int ret;

	assert(entries || n == 0);
	if (FAULT(INDEX_WRITE))
		return -EIO;
	ret = enter_to_write(r);
	if (ret < 0)
		return ret;
	batch = rocksdb_writebatch_create();
	for (size_t i = 0; i < n; i++) {
		const struct index_entry *t = &entries[i];

		assert(t->key && t->key_len > 0);
		if (t->value)
			rocksdb_writebatch_put(batch, t->key, t->key_len, t->value, t->value_len);
		else
			rocksdb_writebatch_delete(batch, t->key, t->key_len);
	}
	rocksdb_write(r->db, sync ? r->write_sync : r->write, batch, &text);
	rocksdb_writebatch_destroy(batch);
	ret = result_of(r, text);
	leave_after_write(r, ret < 0);
	if (ret == 0 && FAULT(INDEX_WRITTEN))
		return -EIO;
	return ret;
}

static int rocks_get(struct index *ix, const void *key, size_t key_len, index_fn *fn, void *arg)
{
	struct rocks *r = rocks_of(ix);
	rocksdb_pinnableslice_t *found;
	char *text = NULL;
	int ret;

	assert(key && key_len > 0 && fn);
	ret = enter(r);
	if (ret < 0)
		return ret;
	found = rocksdb_get_pinned(r->db, r->read, key, key_len, &text);
	ret = result_of(r, text);
	if (ret == 0 && !found)
		ret = CKPT_ENOTFOUND;
	if (ret == 0) {
		size_t len = 0;
		const char *value = rocksdb_pinnableslice_value(found, &len);

		ret = fn(arg, key, key_len, value, len);
	}
	rocksdb_pinnableslice_destroy(found);
	leave(r);
	return ret;
}

/* The least key above all keys with this prefix, in place; its length, 0 when there is none. */
static size_t prefix_end(uint8_t *prefix, size_t len)
{
	while (len > 0 && prefix[len - 1] == 0xff)
		len--;
	if (len > 0)
		prefix[len - 1]++;
	return len;
}

static int walk(struct rocks *r, rocksdb_iterator_t *it, index_fn *fn, void *arg)
{
	char *text = NULL;
	int ret;

	for (; rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
		size_t key_len = 0, value_len = 0;
		const char *key = rocksdb_iter_key(it, &key_len);
		const char *value = rocksdb_iter_value(it, &value_len);

		ret = fn(arg, key, key_len, value, value_len);
		if (ret != 0)
			return ret;
	}
	rocksdb_iter_get_error(it, &text);
	return result_of(r, text);
}

static int rocks_scan(struct index *ix, const void *prefix, size_t prefix_len, const void *from,
		      size_t from_len, index_fn *fn, void *arg)
{
	struct rocks *r = rocks_of(ix);
	CLEANUP_FREE uint8_t *end = alloc_copy(prefix, prefix_len);
	rocksdb_readoptions_t *read;
	rocksdb_iterator_t *it;
	size_t end_len;
	int ret;

	assert(fn && (prefix || prefix_len == 0));
	assert(!from || (from_len >= prefix_len && memcmp(from, prefix, prefix_len) == 0));
	if (!end)
		return -ENOMEM;
	ret = enter(r);
	if (ret < 0)
		return ret;
	/* The bound keeps the walk from searching for a next key among what was deleted. */
	end_len = prefix_end(end, prefix_len);
	read = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(read, 1);
	if (end_len > 0)
		rocksdb_readoptions_set_iterate_upper_bound(read, (const char *)end, end_len);
	it = rocksdb_create_iterator(r->db, read);
	if (from)
		rocksdb_iter_seek(it, from, from_len);
	else
		rocksdb_iter_seek(it, prefix, prefix_len);
	ret = walk(r, it, fn, arg);
	rocksdb_iter_destroy(it);
	rocksdb_readoptions_destroy(read);
	leave(r);
	return ret;
}

static void rocks_free(struct rocks *r)
{
	assert(r->users == 0);
	if (r->db)
		rocksdb_close(r->db);
	if (r->options) {
		rocksdb_options_destroy(r->options);
		rocksdb_readoptions_destroy(r->read);
		rocksdb_writeoptions_destroy(r->write);
		rocksdb_writeoptions_destroy(r->write_sync);
	}
	pthread_mutex_destroy(&r->write_lock);
	pthread_mutex_destroy(&r->lock);
	index_folder_fini(&r->folder);
	alloc_free(r);
}

static void rocks_close(struct index *ix)
{
	if (ix)
		rocks_free(rocks_of(ix));
}

static const struct index_ops rocks_ops = {
	.write = rocks_write,
	.get = rocks_get,
	.scan = rocks_scan,
	.close = rocks_close,
};

/* ---- Open ---- */

static int rocks_new(const struct beneath *in, const char *path, struct rocks **ret)
{
	struct rocks *r = alloc_zero(sizeof(*r));
	int result;

	if (!r)
		return -ENOMEM;
	pthread_mutex_init(&r->write_lock, NULL);
	pthread_mutex_init(&r->lock, NULL);
	r->ix.ops = &rocks_ops;
	result = index_folder_init(&r->folder, in, path);
	if (result < 0) {
		rocks_free(r);
		return result;
	}
	r->options = make_options();
	r->read = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(r->read, 1);
	r->write = rocksdb_writeoptions_create();
	r->write_sync = rocksdb_writeoptions_create();
	rocksdb_writeoptions_set_sync(r->write_sync, 1);
	*ret = r;
	return 0;
}

/* 1: opened; 0: there is no database (any more); e says why one was set aside. */
static int open_existing(struct rocks *r, struct err *e)
{
	struct err why = { 0 };
	int ret = index_folder_look(&r->folder, &why);

	if (ret == 0)
		return 0;
	if (ret > 0)
		ret = open_db(r, false, &why);
	if (ret == 0)
		return 1;
	if (in_surroundings(ret))
		return err_set(e, ret, "open index '%s': %s", r->folder.path, why.text);
	ret = index_folder_set_aside(&r->folder, e);
	if (ret < 0)
		return ret;
	err_set(e, CKPT_ECORRUPT, "index '%s' was set aside as '%s': %s", r->folder.path,
		r->folder.bad, why.text);
	return 0;
}

static int make_new(struct rocks *r, struct err *e)
{
	struct err why = { 0 };
	int ret = index_folder_make(&r->folder, &why);

	if (ret == 0)
		ret = open_db(r, true, &why);
	return ret < 0 ? err_set(e, ret, "make index '%s': %s", r->folder.path, why.text) : 0;
}

int index_rocksdb_open(const struct beneath *in, const char *path, struct index **ret,
		       bool *ret_fresh, struct err *e)
{
	struct rocks *r;
	bool fresh = false;
	int result;

	assert(path && path[0] != '\0');
	assert(ret && ret_fresh);
	assert(!in->as_owner); /* RocksDB's own threads would have root's rights */
	result = rocks_new(in, path, &r);
	if (result < 0)
		return err_code(e, result, "open index '%s'", path);
	err_clear(e);
	result = open_existing(r, e);
	if (result == 0) {
		fresh = true;
		result = make_new(r, e);
	}
	if (result < 0) {
		rocks_free(r);
		return result;
	}
	assert(r->db);
	*ret = &r->ix;
	*ret_fresh = fresh;
	return 0;
}
