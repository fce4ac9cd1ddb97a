/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.c - immutable objects under declarations/ and layouts/, named by the digest of their
 * bytes. Rank tables hold their declarations too: an object that is lost costs a rebuild, nothing
 * more. Threads: any; two that write the same object write the same bytes.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/digest.h"
#include "storage/object_uses.h"
#include "storage/store.h"

static void path_object(char *buf, const char *folder, const char *prefix,
			const struct digest *digest)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, digest->b, sizeof(digest->b));
	snprintf(buf, DISK_PATH_MAX + 1, "%s/%s%s", folder, prefix, hex);
}

static int get_at(struct store *s, const char *path, const struct digest *digest, size_t max,
		  void **ret, size_t *ret_len, struct err *e)
{
	struct digest found;
	void *bytes = NULL;
	size_t len = 0;
	int r;

	r = store_read_file(s, path, max, &bytes, &len);
	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND, "there is no '%s'", path);
	if (r < 0)
		return err_code(e, r, "cannot read '%s'", path);
	found = digest_of(bytes, len);
	if (!digest_equal(&found, digest)) {
		alloc_free(bytes);
		return err_set(e, CKPT_ECORRUPT,
			       "'%s' does not match its name, the digest of its bytes", path);
	}
	*ret = bytes;
	*ret_len = len;
	return 0;
}

int store_get_object(struct store *s, const char *folder, const struct digest *digest, size_t max,
		     void **ret, size_t *ret_len, struct err *e)
{
	char path[DISK_PATH_MAX + 1], aside[DISK_PATH_MAX + 1];
	int r;

	path_object(path, folder, "", digest);
	path_object(aside, folder, OBJECT_ASIDE, digest);
	r = get_at(s, path, digest, max, ret, ret_len, e);
	/* A sweep, or one that crashed, has set it aside. */
	if (r == CKPT_ENOTFOUND && get_at(s, aside, digest, max, ret, ret_len, NULL) == 0) {
		if (e)
			err_clear(e);
		return 0;
	}
	return r;
}

int store_put_object(struct store *s, const char *folder, const struct digest *digest,
		     const void *bytes, size_t len, struct err *e)
{
	struct digest given = digest_of(bytes, len);
	char hex[ID_TEXT_MAX], path[DISK_PATH_MAX + 1];
	size_t there_len = 0;
	void *there = NULL;
	int r;

	if (!digest_equal(&given, digest))
		return err_set(e, -EINVAL, "an object for '%s' does not match its digest", folder);
	hex_format(hex, digest->b, sizeof(digest->b));
	path_object(path, folder, "", digest);
	objects_note(s->uses, digest);
	if (get_at(s, path, digest, len, &there, &there_len, NULL) == 0) {
		alloc_free(there);
		/* Who wrote it may not have come to this step yet. */
		r = s->disk->ops->sync_dir(s->disk, folder);
	} else {
		r = store_publish_file(s, folder, hex, bytes, len);
	}
	return r < 0 ? err_code(e, r, "cannot write '%s/%s'", folder, hex) : 0;
}
