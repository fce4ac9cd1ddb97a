/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be an archive of torch.save(): opened, its dictionary flattened, and every
 * tensor of it read, forwards and from the middle.
 */
#include <config.h>

#include <assert.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/torch_names.h"
#include "tools/torch_state.h"
#include "tools/torch_values.h"
#include "tools/torch_zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BYTES_MAX (1u << 20)

static void use_tensor(struct torch_zip *zip, const struct torch_tensor *t)
{
	CLEANUP_FREE uint8_t *to = NULL;
	struct torch_view view;

	if (t->bytes > BYTES_MAX || torch_view_open(zip, t, BYTES_MAX, &view, NULL) < 0)
		return;
	to = alloc_zero(t->bytes + 1);
	if (to && torch_view_read(&view, t->bytes / 2, to, t->bytes - t->bytes / 2, NULL) == 0)
		ignore_result(torch_view_read(&view, 0, to, t->bytes, NULL)); /* or it is refused */
	torch_view_close(&view);
}

static void use(struct torch_zip *zip)
{
	CLEANUP_FREE void *pickle = NULL;
	struct torch_state s;
	struct torch_tensor t;
	struct pickle p;
	size_t len;

	if (torch_zip_pickle(zip, &pickle, &len, NULL) < 0)
		return;
	if (pickle_parse(pickle, len, torch_find_name, &p, NULL) == 0) {
		if (torch_state_read(&p, &s, NULL) == 0)
			for (size_t i = 0; i < s.n; i++)
				if (s.items[i].tensor &&
				    torch_tensor_of(&p, s.items[i].value, &t, NULL) == 1)
					use_tensor(zip, &t);
		torch_state_fini(&s);
	}
	pickle_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct torch_slice slice = {.fd = -1, .memory = data, .len = size};
	struct torch_zip *zip;
	void *inner;
	size_t len;

	if (torch_zip_open(&slice, &zip, NULL) == 0) {
		use(zip);
		torch_zip_close(zip);
	}
	if (value_unwrap(data, size, &inner, &len, NULL) == 1)
		alloc_free(inner);
	return 0;
}
