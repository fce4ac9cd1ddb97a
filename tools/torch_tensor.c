/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_tensor.c - from calls of torch's rebuild functions to bytes of records.
 *
 * What a pickle says about a tensor is believed only after it was held against the record: (1) the
 * elements that shape, strides and offset reach lie inside the storage that the pickle describes,
 * and (2) that storage is as long as the record. One thread.
 */
#include <config.h>

#include "tools/torch_tensor.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"
#include "tools/plural.h"
#include "tools/torch_names.h"

#define NESTED_MAX 4 /* a parameter of a tensor with attributes of ... */

/* ---- Numbers ---- */

static int count_of(const struct pickle *p, const struct pickle_value *v, const char *what,
		    uint64_t *ret, struct err *e)
{
	if (v->type != PICKLE_INT || v->i < 0)
		return err_set(e, CKPT_EPROTO, "%s is no count but a %s", what,
			       v->type == PICKLE_INT ? "negative number" : pickle_type_text(p, v));
	*ret = (uint64_t)v->i;
	return 0;
}

int torch_sizes_of(const struct pickle *p, const struct pickle_value *v, struct shape *ret,
		   struct err *e)
{
	if (pickle_is_call(p, v, TORCH_SIZE)) {
		const struct pickle_value *args = pickle_args(p, v);

		if (args->n != 1)
			return err_set(e, CKPT_EPROTO, "a torch.Size has %" PRIu32 " arguments",
				       args->n);
		v = pickle_item(p, args, 0);
	}
	if (v->type != PICKLE_TUPLE && v->type != PICKLE_LIST)
		return err_set(e, CKPT_EPROTO, "its sizes are a %s", pickle_type_text(p, v));
	if (v->n > CKPT_NDIM_MAX)
		return err_set(e, CKPT_EVERSION,
			       "it has %" PRIu32 " dimension%s; at most %d can be kept", v->n,
			       plural(v->n), CKPT_NDIM_MAX);
	ret->ndim = v->n;
	for (uint32_t i = 0; i < v->n; i++) {
		int r = count_of(p, pickle_item(p, v, i), "a size", &ret->dim[i], e);

		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- What the pickle says ---- */

/* The persistent id ("storage", class, key, device, elements). */
static int storage_of(const struct pickle *p, const struct pickle_value *v,
		      struct torch_tensor *ret, struct err *e)
{
	const struct pickle_value *id, *class, *key;
	uint64_t elements = 0;
	int r;

	if (v->type != PICKLE_PERSISTENT)
		return err_set(e, CKPT_EPROTO, "its storage is a %s", pickle_type_text(p, v));
	id = pickle_id(p, v);
	if (id->type != PICKLE_TUPLE || id->n != 5 ||
	    !pickle_is_text(pickle_item(p, id, 0), "storage"))
		return err_set(e, CKPT_EPROTO, "its storage is not named as torch names it");
	class = pickle_item(p, id, 1);
	key = pickle_item(p, id, 2);
	if (class->type != PICKLE_NAME ||
	    (pickle_name_of(p, class)->id != TORCH_STORAGE &&
	     pickle_name_of(p, class)->id != TORCH_STORAGE_BYTES))
		return err_set(e, CKPT_EPROTO, "the class of its storage is %s",
			       pickle_type_text(p, class));
	if (key->type != PICKLE_STR)
		return err_set(e, CKPT_EPROTO, "the key of its storage is a %s",
			       pickle_type_text(p, key));
	ret->key = (const char *)key->text;
	ret->key_len = key->n;
	ret->dtype = pickle_name_of(p, class)->dtype;
	r = count_of(p, pickle_item(p, id, 4), "the length of its storage", &elements, e);
	if (r == 0 && !size_mul(elements, dtype_bytes(ret->dtype), &ret->storage_bytes))
		r = err_set(e, CKPT_EPROTO, "its storage has %" PRIu64 " element%s", elements,
			    plural(elements));
	return r;
}

/* (1), and whether it is packed. */
static int place_in_storage(struct torch_tensor *t, struct err *e)
{
	uint64_t elements = 0, last = 0, end = 0, expected = 1, size = dtype_bytes(t->dtype);
	char text[BOX_TEXT_MAX];

	assert(size > 0);
	if (!shape_elements(&t->shape, &elements) || !size_mul(elements, size, &t->bytes))
		return err_set(e, CKPT_EPROTO, "its shape %s has too many elements",
			       shape_text(text, &t->shape));
	t->packed = true;
	for (uint32_t k = t->shape.ndim; k-- > 0 && elements > 0;) {
		uint64_t reach;

		if (t->shape.dim[k] == 1)
			continue;
		t->packed = t->packed && (uint64_t)t->stride[k] == expected;
		expected *= t->shape.dim[k]; /* <= elements */
		if (!size_mul(t->shape.dim[k] - 1, (uint64_t)t->stride[k], &reach) ||
		    !size_add(last, reach, &last))
			last = UINT64_MAX / 2 / size;
	}
	t->span = elements ? last + 1 : 0;
	if (!size_add(t->first, t->span, &end) || !size_mul(end, size, &end) ||
	    end > t->storage_bytes)
		return err_set(e, CKPT_EPROTO,
			       "its elements reach beyond its storage: shape %s from element "
			       "%" PRIu64 ", and the storage has %" PRIu64 " byte%s",
			       shape_text(text, &t->shape), t->first, t->storage_bytes,
			       plural(t->storage_bytes));
	return 0;
}

/* {"conj": True}: the bytes are not the values. */
static int check_bits(const struct pickle *p, const struct pickle_value *v, struct err *e)
{
	static const char *const bits[] = {"conj", "neg"};

	if (v->type == PICKLE_NONE)
		return 0;
	if (v->type != PICKLE_DICT)
		return err_set(e, CKPT_EPROTO, "its properties are a %s", pickle_type_text(p, v));
	if (v->n / 2 > PICKLE_FIELDS_MAX)
		return err_set(e, -E2BIG, "it has %" PRIu32 " properties; at most %d can be read",
			       v->n / 2, PICKLE_FIELDS_MAX);
	for (size_t i = 0; i < sizeof(bits) / sizeof(*bits); i++) {
		const struct pickle_value *bit = pickle_get(p, v, bits[i]);

		if (bit && bit->type == PICKLE_BOOL && bit->flag)
			return err_set(e, CKPT_EVERSION,
				       "it has torch's '%s' bit, so its bytes are not its values: "
				       "save it with .resolve_%s()",
				       bits[i], bits[i]);
	}
	return 0;
}

static int rebuild(const struct pickle *p, const struct pickle_name *how,
		   const struct pickle_value *args, struct torch_tensor *ret, struct err *e)
{
	uint32_t least = how->id == TORCH_REBUILD_V1 ? 4 : how->id == TORCH_REBUILD_V2 ? 6 : 7;
	const struct pickle_value *strides;
	struct shape s;
	int r;

	if (args->type != PICKLE_TUPLE || args->n < least || args->n > least + 1)
		return err_set(e, CKPT_EPROTO, "'%s' has other arguments than torch gives it",
			       how->name);
	r = storage_of(p, pickle_item(p, args, 0), ret, e);
	if (r == 0)
		r = count_of(p, pickle_item(p, args, 1), "its offset", &ret->first, e);
	if (r == 0)
		r = torch_sizes_of(p, pickle_item(p, args, 2), &ret->shape, e);
	strides = pickle_item(p, args, 3);
	if (r == 0)
		r = torch_sizes_of(p, strides, &s, e);
	if (r == 0 && s.ndim != ret->shape.ndim)
		r = err_set(e, CKPT_EPROTO,
			    "it has %" PRIu32 " dimension%s and %" PRIu32 " stride%s",
			    ret->shape.ndim, plural(ret->shape.ndim), s.ndim, plural(s.ndim));
	for (uint32_t k = 0; r == 0 && k < s.ndim; k++)
		ret->stride[k] = (int64_t)s.dim[k]; /* was a non-negative int64_t */
	if (r == 0 && how->id == TORCH_REBUILD_V3) {
		const struct pickle_value *dtype = pickle_item(p, args, 6);

		if (dtype->type != PICKLE_NAME || pickle_name_of(p, dtype)->id != TORCH_DTYPE)
			return err_set(e, CKPT_EPROTO, "its dtype is %s",
				       pickle_type_text(p, dtype));
		ret->dtype = pickle_name_of(p, dtype)->dtype;
	}
	if (r == 0 && args->n > least)
		r = check_bits(p, pickle_item(p, args, least), e);
	return r < 0 ? r : place_in_storage(ret, e);
}

static int tensor_of(const struct pickle *p, const struct pickle_name *how,
		     const struct pickle_value *args, int nested, struct torch_tensor *ret,
		     struct err *e);

/* v is to be a tensor: what a parameter wraps. */
static int inner_tensor(const struct pickle *p, const struct pickle_value *v, int nested,
			struct torch_tensor *ret, struct err *e)
{
	int r = v->type == PICKLE_CALL
			? tensor_of(p, pickle_name_of(p, v), pickle_args(p, v), nested + 1, ret, e)
			: 0;

	return r == 0 ? err_set(e, CKPT_EPROTO, "a parameter is made of a %s",
				pickle_type_text(p, v))
		      : r;
}

/* function(*args), which a tensor with Python attributes is wrapped in; those are left out. */
static int from_type(const struct pickle *p, const struct pickle_value *args, int nested,
		     struct torch_tensor *ret, struct err *e)
{
	const struct pickle_value *function, *type;
	int r;

	if (args->n != 4)
		return err_set(e, CKPT_EPROTO, "a tensor with attributes has %" PRIu32 " arguments",
			       args->n);
	function = pickle_item(p, args, 0);
	type = pickle_item(p, args, 1);
	if (function->type != PICKLE_NAME || type->type != PICKLE_NAME ||
	    pickle_name_of(p, type)->id != TORCH_CLASS)
		return err_set(e, CKPT_EPROTO, "a tensor of another class than torch.Tensor");
	r = tensor_of(p, pickle_name_of(p, function), pickle_item(p, args, 2), nested + 1, ret, e);
	return r == 0 ? err_set(e, CKPT_EPROTO, "'%s' makes no tensor",
				pickle_name_of(p, function)->name)
		      : r;
}

static int tensor_of(const struct pickle *p, const struct pickle_name *how,
		     const struct pickle_value *args, int nested, struct torch_tensor *ret,
		     struct err *e)
{
	int r;

	if (nested > NESTED_MAX)
		return err_set(e, CKPT_EPROTO, "a parameter is nested in %d others", NESTED_MAX);
	if (args->type != PICKLE_TUPLE)
		return err_set(e, CKPT_EPROTO, "the arguments of '%s' are no tuple", how->name);
	switch (how->id) {
	case TORCH_REBUILD_V1:
	case TORCH_REBUILD_V2:
	case TORCH_REBUILD_V3:
		r = rebuild(p, how, args, ret, e);
		return r < 0 ? r : 1;
	case TORCH_REBUILD_PARAMETER:
		if (args->n < 3)
			return err_set(e, CKPT_EPROTO, "a parameter has %" PRIu32 " arguments",
				       args->n);
		return inner_tensor(p, pickle_item(p, args, 0), nested, ret, e);
	case TORCH_REBUILD_TYPE:
		return from_type(p, args, nested, ret, e);
	case TORCH_REBUILD_OTHER:
		return err_set(e, CKPT_EVERSION,
			       "it is sparse, quantized, nested, or not in the CPU's memory (%s), "
			       "which cannot be kept: make it a plain tensor first",
			       how->name);
	default:
		return 0;
	}
}

int torch_tensor_of(const struct pickle *p, const struct pickle_value *v, struct torch_tensor *ret,
		    struct err *e)
{
	*ret = (struct torch_tensor){0};
	if (v->type != PICKLE_CALL)
		return 0;
	return tensor_of(p, pickle_name_of(p, v), pickle_args(p, v), 0, ret, e);
}

/* ---- The bytes ---- */

static int hold(struct torch_view *v, uint64_t memory, struct err *e)
{
	const struct torch_tensor *t = &v->tensor;
	uint64_t size = dtype_bytes(t->dtype), bytes = t->span * size; /* <= the record's */
	int64_t strides[CKPT_NDIM_MAX];
	struct shard s = {.name = "-", .name_len = 1, .dtype = t->dtype, .global = t->shape};
	char needs[TEXT_SIZE_MAX], has[TEXT_SIZE_MAX];
	struct alloc_budget *b;
	int r;

	if (bytes > memory)
		return err_set(e, -E2BIG,
			       "its elements are not in row-major order, so its %s have to be held "
			       "in memory, where there is room for %s: save it with .contiguous()",
			       text_size(needs, bytes), text_size(has, memory));
	b = alloc_set_budget(NULL); /* bytes of a tensor, which `memory` bounds */
	v->held = alloc_zero(bytes);
	alloc_set_budget(b);
	if (!v->held)
		return err_code(e, -ENOMEM, "hold %" PRIu64 " byte%s", bytes, plural(bytes));
	s.box.ndim = t->shape.ndim;
	for (uint32_t k = 0; k < t->shape.ndim; k++) {
		s.box.length[k] = t->shape.dim[k];
		/* Within the storage, (1), but where there is nothing to step to. */
		strides[k] = t->shape.dim[k] == 1 ? 0 : t->stride[k] * (int64_t)size;
	}
	r = shard_check(&s, e);
	if (r == 0 && strided_init(&v->strided, &s, strides) < 0)
		r = err_set(e, CKPT_EPROTO, "its strides cannot be used");
	if (r == 0)
		r = torch_zip_read(v->zip, v->record, t->first * size, v->held, bytes, e);
	return r < 0 ? r : torch_zip_check(v->zip, v->record, e);
}

int torch_view_open(struct torch_zip *zip, const struct torch_tensor *t, uint64_t memory,
		    struct torch_view *ret, struct err *e)
{
	uint64_t bytes;
	int r;

	*ret = (struct torch_view){.zip = zip, .tensor = *t};
	r = torch_zip_find(zip, t->key, t->key_len, &ret->record, &bytes, e);
	if (r == 0 && bytes != t->storage_bytes) /* (2) */
		r = err_set(e, CKPT_ECORRUPT,
			    "its storage '%.*s' has %" PRIu64 " byte%s; data.pkl says %" PRIu64,
			    (int)min_u64(t->key_len, 100), t->key, bytes, plural(bytes),
			    t->storage_bytes);
	if (r == 0 && !t->packed && t->bytes > 0)
		r = hold(ret, memory, e);
	if (r < 0)
		torch_view_close(ret);
	return r;
}

int torch_view_read(struct torch_view *v, uint64_t offset, void *to, uint64_t len, struct err *e)
{
	const struct torch_tensor *t = &v->tensor;
	int r;

	assert(offset <= t->bytes && len <= t->bytes - offset);
	if (v->held) {
		strided_gather(&v->strided, v->held, offset, to, len);
		return 0;
	}
	r = torch_zip_read(v->zip, v->record, t->first * dtype_bytes(t->dtype) + offset, to, len,
			   e);
	if (r < 0 || offset + len < t->bytes)
		return r;
	return torch_zip_check(v->zip, v->record, e); /* the storage may go on behind it */
}

void torch_view_close(struct torch_view *v)
{
	struct alloc_budget *b = alloc_set_budget(NULL); /* as in hold() */

	alloc_free(v->held);
	alloc_set_budget(b);
	v->held = NULL;
}
