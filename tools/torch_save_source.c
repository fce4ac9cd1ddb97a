/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_save_source.c - a file of torch.save() with a state dictionary as a source.
 *
 * Tensors that share a storage become tensors of their own, and one that was expanded from a
 * smaller one is written in full: so a small file can stand for much. (1) All tensors together
 * have at most GROWTH times the bytes of the file, and a free amount. One thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"
#include "tools/torch_names.h"
#include "tools/torch_source.h"
#include "tools/torch_state.h"
#include "tools/torch_values.h"

#define GROWTH      64u
#define GROWTH_FREE ((uint64_t)1 << 30)

static int take_tensor(struct torch_source *t, const struct torch_item *item,
		       const struct torch_tensor *tensor, struct err *e)
{
	struct torch_view view;
	int r = torch_view_open(t->zip, tensor, 0, &view, e);

	if (r == -E2BIG) /* it is there: the bytes come later */
		r = 0;
	torch_view_close(&view);
	if (r < 0)
		return r;
	t->values[t->s.n] = item->value;
	t->tensors[t->s.n++] = (struct reading_tensor){.name = item->name,
						       .name_len = (uint32_t)strlen(item->name),
						       .dtype = tensor->dtype,
						       .global = tensor->shape,
						       .bytes = tensor->bytes};
	return 0;
}

static int take_value(struct torch_source *t, const struct torch_item *item, struct err *e)
{
	CLEANUP_FREE void *archive = NULL;
	size_t len;
	int r = value_save(&t->pickle, item->value, &archive, &len, e);

	return r < 0 ? r
		     : torch_source_add_blob(t, item->name, strlen(item->name), archive, len, e);
}

/* bytes: of all tensors up to this one; len: of the file. */
static int take_item(struct torch_source *t, const struct torch_item *item, uint64_t len,
		     uint64_t *bytes, struct err *e)
{
	struct torch_tensor tensor;
	int r;

	if (!item->tensor)
		return take_value(t, item, e);
	r = torch_tensor_of(&t->pickle, item->value, &tensor, e);
	assert(r == 1); /* it was, when it was listed */
	if (!size_add(*bytes, tensor.bytes, bytes) || *bytes > GROWTH * len + GROWTH_FREE) /* (1) */
		return err_set(e, -E2BIG,
			       "with it all tensors have %" PRIu64 " byte%s, more than the "
			       "file of %" PRIu64 " byte%s should hold: it was expanded",
			       *bytes, plural(*bytes), len, plural(len));
	return take_tensor(t, item, &tensor, e);
}

static int take_items(struct torch_source *t, struct torch_state *s, uint64_t len, struct err *e)
{
	uint64_t bytes = 0;
	int r = 0;

	t->names = s->names; /* which the items have */
	s->names = (struct texts){0};
	t->tensors = alloc_array(s->n_tensors, sizeof(*t->tensors));
	t->values = alloc_array(s->n_tensors, sizeof(*t->values));
	if (!t->tensors || !t->values)
		return err_code(e, -ENOMEM, "%zu tensor%s", s->n_tensors, plural(s->n_tensors));
	for (size_t i = 0; r == 0 && i < s->n; i++) {
		r = take_item(t, &s->items[i], len, &bytes, e);
		if (r < 0)
			err_wrap(e, r, "'%.200s'", s->items[i].name);
	}
	if (r < 0 || s->paths.len == 0)
		return r;
	return torch_source_add_blob(t, TORCH_PATHS_BLOB, strlen(TORCH_PATHS_BLOB), s->paths.buf,
				     s->paths.len, e);
}

static int open_zip(struct torch_source *t, uint64_t *ret_len, struct err *e)
{
	struct torch_slice slice = {0};
	struct stat st;
	int r;

	t->files = alloc_array(1, sizeof(*t->files));
	if (!t->files)
		return err_code(e, -ENOMEM, "open %.200s", t->what);
	t->files[0] = alloc_str(t->path);
	if (!t->files[0])
		return err_code(e, -ENOMEM, "open %.200s", t->what);
	t->n_files = 1;
	t->fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (t->fd < 0 || fstat(t->fd, &st) != 0)
		return err_code(e, -errno, "open %.250s", t->what);
	if (!S_ISREG(st.st_mode))
		return err_set(e, CKPT_EPROTO, "%.250s is no regular file", t->what);
	slice.fd = t->fd;
	slice.own_metadata = true;
	slice.len = *ret_len = (uint64_t)st.st_size;
	r = torch_zip_open(&slice, &t->zip, e);
	return r < 0 ? err_wrap(e, r, "%.200s", t->what) : 0;
}

static int read_state(struct torch_source *t, uint64_t len, struct err *e)
{
	struct torch_state s = {0};
	size_t pickle_len = 0;
	int r = torch_zip_pickle(t->zip, &t->pickle_bytes, &pickle_len, e);

	if (r == 0)
		r = pickle_parse(t->pickle_bytes, pickle_len, torch_find_name, &t->pickle, e);
	if (r == 0)
		r = torch_state_read(&t->pickle, &s, e);
	if (r == 0)
		r = take_items(t, &s, len, e);
	if (r < 0)
		err_wrap(e, r, "%.200s", t->what);
	torch_state_fini(&s);
	return r;
}

bool torch_save_detect(const char *path)
{
	static const char zip[4] = "PK\3\4";
	char magic[4] = {0};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fd < 0 ? 0 : pread(fd, magic, sizeof(magic), 0);

	if (fd >= 0)
		close(fd); /* was only read */
	return n == sizeof(magic) &&
	       (memcmp(magic, zip, sizeof(zip)) == 0 ||
		((uint8_t)magic[0] == 0x80 && magic[1] >= 2 && magic[1] <= 5));
}

int torch_save_open(const char *path, struct source **ret, struct err *e)
{
	struct torch_source *t;
	uint64_t len = 0;
	int r = torch_source_new(path, &t, e);

	if (r < 0)
		return r;
	r = open_zip(t, &len, e);
	if (r == 0)
		r = read_state(t, len, e);
	if (r == 0)
		r = torch_source_ready(t, e);
	if (r < 0) {
		torch_source_close(&t->s);
		return r;
	}
	*ret = &t->s;
	return 0;
}
