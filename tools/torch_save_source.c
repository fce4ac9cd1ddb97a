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

static int take_tensor(struct torch_source *t, const struct torch_item *item, uint64_t len,
		       struct err *e)
{
	size_t i = t->s.n, part = t->first_part[i];
	struct reading_tensor *to = &t->tensors[i];
	struct torch_view view;
	char *name;
	int r = torch_view_open(t->zip, &item->tensor, 0, &view, e);

	if (r == -E2BIG) /* it is there: the bytes come later */
		r = 0;
	torch_view_close(&view);
	if (r < 0)
		return r;
	name = alloc_str(item->name);
	if (!name)
		return err_code(e, -ENOMEM, "keep a name");
	*to = (struct reading_tensor){.name = name,
				      .name_len = (uint32_t)strlen(name),
				      .dtype = item->tensor.dtype,
				      .global = item->tensor.shape,
				      .bytes = item->tensor.bytes};
	t->s.n++;
	t->views[i] = item->tensor;
	if (to->bytes > 0) {
		struct torch_part *p = &t->parts[part++];

		*p = (struct torch_part){.len = len, .fd = -1};
		p->box.ndim = to->global.ndim;
		memcpy(p->box.length, to->global.dim, sizeof(p->box.length));
	}
	t->first_part[i + 1] = part;
	return 0;
}

static int take_value(struct torch_source *t, const struct pickle *p, const struct torch_item *item,
		      struct err *e)
{
	CLEANUP_FREE void *archive = NULL;
	size_t len;
	int r = value_save(p, item->value, &archive, &len, e);

	return r < 0 ? r
		     : torch_source_add_blob(t, item->name, strlen(item->name), archive, len, e);
}

static int take_paths(struct torch_source *t, const struct torch_state *s, struct err *e)
{
	CLEANUP_FREE char *text = NULL;

	if (json_object_size(s->paths) == 0)
		return 0;
	text = json_dumps(s->paths, JSON_COMPACT);
	if (!text)
		return err_code(e, -ENOMEM, "keep the paths");
	return torch_source_add_blob(t, TORCH_PATHS_BLOB, strlen(TORCH_PATHS_BLOB), text,
				     strlen(text), e);
}

static int take_items(struct torch_source *t, const struct pickle *p, const struct torch_state *s,
		      uint64_t len, struct err *e)
{
	uint64_t bytes = 0;
	int r = 0;

	t->tensors = alloc_array(s->n_tensors, sizeof(*t->tensors));
	t->views = alloc_array(s->n_tensors, sizeof(*t->views));
	t->parts = alloc_array(s->n_tensors, sizeof(*t->parts));
	t->first_part = alloc_array(s->n_tensors + 1, sizeof(*t->first_part));
	if (!t->tensors || !t->views || !t->parts || !t->first_part)
		return err_code(e, -ENOMEM, "%zu tensor%s", s->n_tensors, plural(s->n_tensors));
	for (size_t i = 0; r == 0 && i < s->n; i++) {
		const struct torch_item *item = &s->items[i];

		if (item->value)
			r = take_value(t, p, item, e);
		else if (!size_add(bytes, item->tensor.bytes, &bytes) ||
			 bytes > GROWTH * len + GROWTH_FREE) /* (1); len is that of a file */
			r = err_set(e, -E2BIG,
				    "with it all tensors have %" PRIu64 " byte%s, more than the "
				    "file of %" PRIu64 " byte%s should hold: it was expanded",
				    bytes, plural(bytes), len, plural(len));
		else
			r = take_tensor(t, item, len, e);
		if (r < 0)
			err_wrap(e, r, "'%.200s'", item->name);
	}
	return r < 0 ? r : take_paths(t, s, e);
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
	t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
	if (t->fd < 0 || fstat(t->fd, &st) != 0)
		return err_code(e, -errno, "open %.250s", t->what);
	if (!S_ISREG(st.st_mode))
		return err_set(e, CKPT_EPROTO, "%.250s is no regular file", t->what);
	slice.fd = t->fd;
	slice.len = *ret_len = (uint64_t)st.st_size;
	r = torch_zip_open(&slice, &t->zip, e);
	return r < 0 ? err_wrap(e, r, "%.200s", t->what) : 0;
}

static int read_state(struct torch_source *t, uint64_t len, struct err *e)
{
	struct pickle p = {0};
	struct torch_state s = {0};
	size_t pickle_len = 0;
	int r = torch_zip_pickle(t->zip, &t->pickle, &pickle_len, e);

	if (r == 0)
		r = pickle_parse(t->pickle, pickle_len, torch_find_name, &p, e);
	if (r == 0)
		r = torch_state_read(&p, &s, e);
	if (r == 0)
		r = take_items(t, &p, &s, len, e);
	if (r < 0)
		err_wrap(e, r, "%.200s", t->what);
	torch_state_fini(&s);
	pickle_free(&p);
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
