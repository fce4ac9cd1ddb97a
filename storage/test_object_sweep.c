/* SPDX-License-Identifier: Apache-2.0 */
/* A sweep removes declarations and layouts that nothing refers to, and keeps those that a COMMIT
 * refers to after any failure or crash. */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "storage/layout_file.h"
#include "storage/object_sweep.h"
#include "storage/object_uses.h"
#include "storage/test_fixture.h"
#include "tests/lib/test.h"

#define WORLD 2u

/* Declarations are any bytes here. */
struct objects {
	char text[WORLD][40];
	struct digest declarations[WORLD], layout;
};

static struct objects put(struct folder *f, const char *name)
{
	struct err e = {0};
	struct objects o;

	for (uint32_t i = 0; i < WORLD; i++) {
		snprintf(o.text[i], sizeof(o.text[i]), "declaration %u of %s", i, name);
		o.declarations[i] = digest_of(o.text[i], strlen(o.text[i]));
		must(store_put_object(&f->store, "declarations", &o.declarations[i], o.text[i],
				      strlen(o.text[i]), &e),
		     &e);
	}
	must(layout_file_put(&f->store, o.declarations, WORLD, &o.layout, &e), &e);
	return o;
}

/* A checkpoint whose COMMIT refers to the layout. */
static void commit(struct folder *f, uint64_t step, const struct objects *o)
{
	struct checkpoint_id id = test_id(step);
	struct image images[WORLD];
	struct commit_file c;
	struct err e = {0};

	for (uint32_t i = 0; i < WORLD; i++)
		images[i] = image_make(f->store.geometry, 1000, i, WORLD, step, 0);
	must(write_checkpoint(f, &id, images, WORLD, &e), &e);
	must(commit_read(&f->store, &id, &c, &e), &e);
	c.layout = o->layout;
	must(commit_publish(&f->store, &c, &e), &e);
	commit_file_fini(&c);
	for (uint32_t i = 0; i < WORLD; i++)
		image_free(&images[i]);
}

static bool is_there(struct folder *f, const struct objects *o)
{
	struct digest *ranks = NULL;
	uint32_t world = 0, found = 0;
	int r = layout_file_get(&f->store, &o->layout, &ranks, &world, NULL);

	for (uint32_t i = 0; i < WORLD; i++) {
		void *bytes = NULL;
		size_t len = 0;

		found += store_get_object(&f->store, "declarations", &o->declarations[i], 100,
					  &bytes, &len, NULL) == 0;
		alloc_free(bytes);
	}
	alloc_free(ranks);
	assert_true(r == 0 ? found == WORLD : true); /* no layout without its declarations */
	return r == 0;
}

static int run(struct object_sweep *w, struct err *e)
{
	atomic_bool cancel = false;
	int r;

	do
		r = object_sweep_slice(w, &cancel, e);
	while (r > 0);
	return r;
}

static int sweep(struct folder *f, uint64_t *ret_removed)
{
	struct object_sweep *w;
	struct err e = {0};
	int r;

	assert_int_equal(object_sweep_begin(&f->store, &w), 0);
	r = run(w, &e);
	*ret_removed = object_sweep_removed(w);
	object_sweep_end(w);
	return r;
}

static void test_what_is_used_stays(void **state)
{
	struct folder *f = *state;
	struct objects used = put(f, "used"), unused = put(f, "unused"), kept = put(f, "kept");
	struct object_sweep *w;
	struct err e = {0};
	uint64_t removed;

	commit(f, 1, &used);
	assert_int_equal(object_sweep_begin(&f->store, &w), 0);
	assert_int_equal(object_sweep_keep_layout(w, &kept.layout), 0);
	assert_int_equal(run(w, &e), 0);
	assert_int_equal(object_sweep_removed(w), WORLD + 1);
	object_sweep_end(w);
	assert_true(is_there(f, &used) && is_there(f, &kept));
	assert_false(is_there(f, &unused));
	assert_int_equal(count_in(f, "layouts"), 2);
	assert_int_equal(count_in(f, "declarations"), 2 * WORLD);
	assert_int_equal(sweep(f, &removed), 0);
	assert_int_equal(removed, WORLD + 1); /* what only memory used */
	assert_true(is_there(f, &used));
	assert_false(is_there(f, &kept));
}

/* The layout of a COMMIT cannot be read: its declarations are not known, so none is removed. */
static void test_what_cannot_be_read_is_used(void **state)
{
	struct folder *f = *state;
	struct objects used = put(f, "used"), unused = put(f, "unused");
	char path[DISK_PATH_MAX + 1], hex[ID_TEXT_MAX];
	struct checkpoint_id id = test_id(1);
	uint64_t removed;
	struct disk_file *file;

	commit(f, 1, &used);
	hex_format(hex, used.layout.b, sizeof(used.layout.b));
	snprintf(path, sizeof(path), "layouts/%s", hex);
	assert_int_equal(f->real->ops->unlink(f->real, path), 0);
	assert_int_equal(sweep(f, &removed), 0);
	assert_int_equal(removed, 1); /* the layout that nothing uses */
	assert_int_equal(count_in(f, "declarations"), 2 * WORLD);
	/* A damaged COMMIT says nothing of what it uses. */
	unused = put(f, "unused");
	path_commit(path, &id);
	assert_int_equal(f->real->ops->open(f->real, path, 0, &file), 0);
	assert_int_equal(f->real->ops->write(file, "x", 1, 20), 0);
	f->real->ops->close(file);
	assert_int_equal(sweep(f, &removed), CKPT_ESTATE);
	assert_int_equal(removed, 0);
	assert_true(is_there(f, &unused));
}

/* An entry in incoming/ belongs to a tool, whose objects no COMMIT of jobs/ refers to yet. */
static void test_a_tool_is_at_work(void **state)
{
	struct folder *f = *state;
	struct objects unused = put(f, "unused");
	char path[DISK_PATH_MAX + 1];
	struct job_id job = test_id(1).job;
	char hex[ID_TEXT_MAX];
	uint64_t removed;

	hex_format(hex, job.b, sizeof(job.b));
	snprintf(path, sizeof(path), "incoming/%s", hex);
	assert_int_equal(f->real->ops->mkdir(f->real, "incoming"), 0);
	assert_int_equal(f->real->ops->mkdir(f->real, path), 0);
	assert_int_equal(sweep(f, &removed), CKPT_ESTATE);
	assert_int_equal(removed, 0);
	assert_true(is_there(f, &unused));
	assert_int_equal(f->real->ops->rmdir(f->real, path), 0);
	assert_int_equal(sweep(f, &removed), 0);
	assert_int_equal(removed, WORLD + 1);
}

/* A writer that finds the objects at any moment of the sweep still has them when it publishes. */
static void test_a_writer_comes_meanwhile(void **state)
{
	struct folder *f = *state;
	atomic_bool cancel = false;

	for (int at = 0;; at++) {
		struct objects o = put(f, "a writer's");
		struct object_sweep *w;
		struct err e = {0};
		int slices = 0, r;

		assert_int_equal(object_sweep_begin(&f->store, &w), 0);
		do {
			if (slices++ == at)
				put(f, "a writer's");
			r = object_sweep_slice(w, &cancel, &e);
		} while (r > 0);
		must(r, &e);
		object_sweep_end(w);
		if (at >= slices) {
			assert_false(is_there(f, &o));
			break;
		}
		assert_true(is_there(f, &o));
	}
	/* While one is between its objects and its COMMIT none begins. */
	objects_begin(f->store.uses);
	assert_int_equal(object_sweep_begin(&f->store, &(struct object_sweep *){NULL}), -EBUSY);
	objects_end(f->store.uses);
}

/* An error or a crash at each point: used objects are there, at once and after the next sweep,
 * which removes what this one left. */
static void test_each_fault(void **state)
{
	static const enum fault_point points[] = {FAULT_SWEEP_ASIDE, FAULT_SWEEP_REMOVED};
	struct folder *f = *state;
	struct objects used = put(f, "used");
	uint64_t removed;

	commit(f, 1, &used);
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
		for (uint64_t at = 1; at <= WORLD + 1; at++) {
			put(f, "unused");
			fault_disarm_all(); /* counts too */
			fault_arm(points[i], FAULT_ERROR, at, false);
			assert_true(sweep(f, &removed) < 0);
			fault_disarm_all();
			assert_true(is_there(f, &used));
			if (at % 2) {
				folder_close_store(f);
				folder_open_store(f);
			}
			assert_int_equal(sweep(f, &removed), 0);
			assert_true(is_there(f, &used));
			assert_int_equal(count_in(f, "layouts"), 1);
			assert_int_equal(count_in(f, "declarations"), WORLD);
		}
}

/* A sweep died between its two steps, and a COMMIT refers to what it had set aside. */
static void test_set_aside_and_used(void **state)
{
	struct folder *f = *state;
	struct objects used = put(f, "used");
	char hex[ID_TEXT_MAX], from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1];
	uint64_t removed;

	commit(f, 1, &used);
	for (uint32_t i = 0; i <= WORLD; i++) {
		const struct digest *d = i < WORLD ? &used.declarations[i] : &used.layout;
		const char *folder = i < WORLD ? "declarations" : "layouts";

		hex_format(hex, d->b, sizeof(d->b));
		snprintf(from, sizeof(from), "%s/%s", folder, hex);
		snprintf(to, sizeof(to), "%s/" OBJECT_ASIDE "%s", folder, hex);
		assert_int_equal(f->real->ops->rename(f->real, from, to), 0);
	}
	assert_true(is_there(f, &used)); /* readers find it */
	assert_int_equal(sweep(f, &removed), 0);
	assert_int_equal(removed, 0);
	assert_true(is_there(f, &used));
	assert_int_equal(f->real->ops->unlink(f->real, to), -ENOENT); /* it has its name again */
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, folder_set_up, folder_tear_down)
	const struct CMUnitTest tests[] = {
		T(test_what_is_used_stays),
		T(test_what_cannot_be_read_is_used),
		T(test_a_tool_is_at_work),
		T(test_a_writer_comes_meanwhile),
		T(test_each_fault),
		T(test_set_aside_and_used),
	};

	fixture_backend = "threads";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
