/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_metadata_write.c - the file .metadata, as torch's FileSystemWriter pickles it.
 *
 * The classes are those of torch 2.4 and later, or, for torch 1.13, those of its private package.
 * Any thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "tools/dcp_write.h"
#include "tools/torch_names.h"
#include "tools/torch_values.h"

struct classes {
	const char *metadata, *filesystem, *properties, *memory_format;
};

static const struct classes torch_2 = {
	.metadata = "torch.distributed.checkpoint.metadata",
	.filesystem = "torch.distributed.checkpoint.filesystem",
	.properties = "torch.distributed.checkpoint.metadata",
	.memory_format = "_MEM_FORMAT_ENCODING",
};
static const struct classes torch_1 = {
	.metadata = "torch.distributed._shard.checkpoint.metadata",
	.filesystem = "torch.distributed._shard.checkpoint.filesystem",
	.properties = "torch.distributed._shard.sharded_tensor.metadata",
	.memory_format = "MEM_FORMAT_ENCODING",
};

struct metadata_writer {
	struct pickle_writer w;
	const struct dcp_out *d;
	const struct classes *c;
};

static void begin_dict(struct pickle_writer *w)
{
	pickle_op(w, PICKLE_OP_EMPTY_DICT);
	pickle_op(w, PICKLE_OP_MARK);
}

static void end_dict(struct pickle_writer *w)
{
	pickle_op(w, PICKLE_OP_SETITEMS);
}

/* The state of an object: a dict of its fields. */
static void begin_object(struct pickle_writer *w, const char *module, const char *name)
{
	pickle_object(w, module, name);
	begin_dict(w);
}

static void end_object(struct pickle_writer *w)
{
	end_dict(w);
	pickle_op(w, PICKLE_OP_BUILD);
}

static void put_properties(struct metadata_writer *m, uint32_t dtype)
{
	struct pickle_writer *w = &m->w;
	bool since_2;

	pickle_object(w, m->c->properties, "TensorProperties");
	pickle_op(w, PICKLE_OP_MARK);
	pickle_global(w, "torch", torch_dtype_name(dtype, &since_2));
	pickle_global(w, "torch.serialization", "_get_layout");
	pickle_key(w, "torch.strided");
	pickle_op(w, PICKLE_OP_TUPLE1);
	pickle_op(w, PICKLE_OP_REDUCE);
	pickle_op(w, PICKLE_OP_FALSE); /* requires_grad */
	pickle_global(w, m->c->properties, m->c->memory_format);
	pickle_int(w, 0); /* contiguous */
	pickle_op(w, PICKLE_OP_TUPLE1);
	pickle_op(w, PICKLE_OP_REDUCE);
	pickle_op(w, PICKLE_OP_FALSE); /* pin_memory */
	pickle_op(w, PICKLE_OP_TUPLE);
	pickle_op(w, PICKLE_OP_BUILD);
}

static void put_chunk(struct metadata_writer *m, const struct box *box)
{
	struct pickle_writer *w = &m->w;

	begin_object(w, m->c->metadata, "ChunkStorageMetadata");
	pickle_key(w, "offsets");
	pickle_size(w, box->ndim, box->offset);
	pickle_key(w, "sizes");
	pickle_size(w, box->ndim, box->length);
	end_object(w);
}

/* Chunks [i, n) of one tensor; returns how many. */
static size_t put_tensor(struct metadata_writer *m, size_t i)
{
	const struct dcp_out *d = m->d;
	size_t tensor = d->chunks[i].tensor, n = i;
	const struct reading_tensor *t = &d->x->from->tensors[tensor];
	struct pickle_writer *w = &m->w;

	pickle_text(w, t->name, t->name_len);
	begin_object(w, m->c->metadata, "TensorStorageMetadata");
	pickle_key(w, "properties");
	put_properties(m, export_dtype(d->x, tensor));
	pickle_key(w, "size");
	pickle_size(w, t->global.ndim, t->global.dim);
	pickle_key(w, "chunks");
	pickle_op(w, PICKLE_OP_EMPTY_LIST);
	pickle_op(w, PICKLE_OP_MARK);
	for (; n < d->n_chunks && d->chunks[n].tensor == tensor; n++)
		put_chunk(m, &d->chunks[n].box);
	pickle_op(w, PICKLE_OP_APPENDS);
	end_object(w);
	return n - i;
}

static void put_items(struct metadata_writer *m)
{
	struct pickle_writer *w = &m->w;

	begin_dict(w);
	for (size_t i = 0; i < m->d->n_chunks;)
		i += put_tensor(m, i);
	for (size_t i = 0; i < m->d->n_blobs; i++) {
		pickle_text(w, m->d->blobs[i].name, strlen(m->d->blobs[i].name));
		pickle_object(w, m->c->metadata, "BytesStorageMetadata");
	}
	end_dict(w);
}

static void put_paths(struct metadata_writer *m)
{
	struct pickle_writer *w = &m->w;

	begin_dict(w);
	for (size_t i = 0; i < m->d->x->n; i++) {
		const struct reading_tensor *t = &m->d->x->from->tensors[m->d->x->chosen[i]];

		pickle_text(w, t->name, t->name_len);
		paths_write(w, m->d->paths, t->name, t->name_len);
	}
	for (size_t i = 0; i < m->d->n_blobs; i++) {
		const char *name = m->d->blobs[i].name;

		pickle_text(w, name, strlen(name));
		paths_write(w, m->d->paths, name, strlen(name));
	}
	end_dict(w);
}

static void put_place(struct metadata_writer *m, uint32_t file, uint64_t offset, uint64_t len)
{
	struct pickle_writer *w = &m->w;
	char path[32];
	int n = snprintf(path, sizeof(path), "__%" PRIu32 "_0.distcp", file);

	begin_object(w, m->c->filesystem, "_StorageInfo");
	pickle_key(w, "relative_path");
	pickle_text(w, path, (size_t)n);
	pickle_key(w, "offset");
	pickle_int(w, (int64_t)offset);
	pickle_key(w, "length");
	pickle_int(w, (int64_t)len);
	end_object(w);
}

static void put_places(struct metadata_writer *m)
{
	const struct dcp_out *d = m->d;
	struct pickle_writer *w = &m->w;

	begin_dict(w);
	for (size_t i = 0, first = 0; i < d->n_chunks; i++) {
		const struct dcp_out_chunk *c = &d->chunks[i];
		const struct reading_tensor *t = &d->x->from->tensors[c->tensor];

		first = d->chunks[first].tensor == c->tensor ? first : i;
		begin_object(w, m->c->metadata, "MetadataIndex");
		pickle_key(w, "fqn");
		pickle_text(w, t->name, t->name_len);
		pickle_key(w, "index");
		pickle_int(w, (int64_t)(i - first));
		pickle_key(w, "offset");
		pickle_size(w, c->box.ndim, c->box.offset);
		end_object(w);
		put_place(m, c->file, c->offset, c->len);
	}
	for (size_t i = 0; i < d->n_blobs; i++) {
		const struct dcp_out_blob *b = &d->blobs[i];

		begin_object(w, m->c->metadata, "MetadataIndex");
		pickle_key(w, "fqn");
		pickle_text(w, b->name, strlen(b->name));
		pickle_key(w, "index");
		pickle_op(w, PICKLE_OP_NONE);
		end_object(w);
		put_place(m, b->file, b->offset, b->len);
	}
	end_dict(w);
}

int dcp_out_metadata(const struct dcp_out *d, void **ret, size_t *ret_len, struct err *e)
{
	bool old = d->x->torch_1;
	struct metadata_writer m = {.d = d, .c = old ? &torch_1 : &torch_2};
	struct pickle_writer *w = &m.w;

	pickle_begin(w);
	begin_object(w, m.c->metadata, "Metadata");
	pickle_key(w, "state_dict_metadata");
	put_items(&m);
	pickle_key(w, "planner_data");
	if (old) /* it flattens nothing */
		pickle_op(w, PICKLE_OP_NONE);
	else
		put_paths(&m);
	pickle_key(w, "storage_data");
	put_places(&m);
	if (!old) {
		pickle_key(w, "storage_meta");
		pickle_op(w, PICKLE_OP_NONE);
	}
	end_object(w);
	pickle_op(w, PICKLE_OP_STOP);
	if (w->out.bad) {
		pickle_writer_free(w);
		return err_code(e, -ENOMEM, "write .metadata");
	}
	*ret = w->out.buf;
	*ret_len = w->out.len;
	return 0;
}
