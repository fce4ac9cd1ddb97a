/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_beneath.c - names below a folder: links are not followed in any place, with openat2 and
 * without; a folder that is exchanged meanwhile; root as the folder's owner; whom a daemon trusts.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/beneath.h"
#include "storage/disk_posix.h"
#include "storage/index_rocksdb.h"
#include "tests/lib/test.h"

#define OWNER 65534

static char *dir; /* data, victim and its file "precious" */
static const char *mode;

static const char *in_dir(const char *name)
{
	return test_path(dir, name);
}

static void put_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void must_be(const char *path, const char *text)
{
	char got[100] = "";
	int fd = open(path, O_RDONLY);

	assert_true(fd >= 0);
	assert_true(read(fd, got, sizeof(got) - 1) >= 0);
	close(fd);
	assert_string_equal(got, text);
}

static int set_up(void **state)
{
	(void)state;
	if (mode)
		setenv("CKPT_DISK_OPENAT2", mode, 1);
	else
		unsetenv("CKPT_DISK_OPENAT2");
	dir = test_dir_make(NULL);
	assert_int_equal(mkdir(in_dir("data"), 0700), 0);
	assert_int_equal(mkdir(in_dir("data/real"), 0700), 0);
	assert_int_equal(mkdir(in_dir("victim"), 0700), 0);
	assert_int_equal(mkdir(in_dir("victim/below"), 0700), 0);
	put_file(in_dir("victim/precious"), "precious");
	put_file(in_dir("data/real/file"), "ours");
	assert_int_equal(symlink(in_dir("victim"), in_dir("data/folder")), 0);
	assert_int_equal(symlink("../victim", in_dir("data/near")), 0);
	assert_int_equal(symlink(in_dir("victim/precious"), in_dir("data/file")), 0);
	assert_int_equal(symlink("real", in_dir("data/inside")), 0);
	assert_int_equal(symlink(in_dir("victim/new"), in_dir("data/dangling")), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	must_be(in_dir("victim/precious"), "precious");
	assert_int_equal(access(in_dir("victim/below"), F_OK), 0);
	assert_int_equal(access(in_dir("victim/new"), F_OK), -1);
	test_dir_remove(dir);
	return 0;
}

static struct beneath open_data(void)
{
	struct beneath b = {.folder = -1};
	struct err e = {0};

	if (beneath_open(in_dir("data"), &b, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(b.openat2, mode == NULL);
	return b;
}

static int take_name(void *arg, const char *name, bool is_dir)
{
	unsigned *n = arg;

	assert_int_equal(is_dir, strcmp(name, "real") == 0);
	(*n)++;
	return 0;
}

static void test_links_are_not_followed(void **state)
{
	static const char *const folders[] = {"folder", "near", "inside"};
	static const char *const files[] = {"file", "dangling"};
	struct beneath b = open_data(), sub;
	char path[100];
	struct stat st;
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		assert_int_equal(beneath_folder(&b, folders[i]), -ELOOP);
		assert_int_equal(beneath_enter(&b, folders[i], &sub), -ELOOP);
		assert_int_equal(beneath_list(&b, folders[i], take_name, &n), -ELOOP);
		snprintf(path, sizeof(path), "%s/new", folders[i]);
		assert_int_equal(beneath_file(&b, path, O_RDWR | O_CREAT), -ELOOP);
		assert_int_equal(beneath_mkdir(&b, path), -ELOOP);
		assert_int_equal(beneath_access(&b, path, F_OK), -ELOOP);
		assert_int_equal(beneath_link(&b, "real/file", path), -ELOOP);
		assert_int_equal(beneath_rename(&b, "real/file", path), -ELOOP);
		snprintf(path, sizeof(path), "%s/precious", folders[i]);
		assert_int_equal(beneath_file(&b, path, O_RDONLY), -ELOOP);
		assert_int_equal(beneath_stat(&b, path, &st), -ELOOP);
		assert_int_equal(beneath_remove(&b, path, false), -ELOOP);
		assert_int_equal(beneath_rename(&b, path, "real/taken"), -ELOOP);
		assert_int_equal(beneath_link(&b, path, "real/taken"), -ELOOP);
		snprintf(path, sizeof(path), "%s/below", folders[i]);
		assert_int_equal(beneath_remove(&b, path, true), -ELOOP);
	}
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		assert_int_equal(beneath_file(&b, files[i], O_RDONLY), -ELOOP);
		assert_int_equal(beneath_file(&b, files[i], O_RDWR | O_CREAT | O_TRUNC), -ELOOP);
		assert_int_equal(beneath_file(&b, files[i], O_RDWR | O_CREAT | O_EXCL), -EEXIST);
		assert_int_equal(beneath_access(&b, files[i], F_OK), -ELOOP);
	}
	assert_int_equal(beneath_list(&b, "", take_name, &n), 0);
	assert_int_equal(n, 6);
	beneath_close(&b);
}

/* An open of a FIFO would wait for its other end. What is opened blocks as files do. */
static void test_only_files_are_opened(void **state)
{
	struct beneath b = open_data();
	int fd;

	(void)state;
	assert_int_equal(mkfifo(in_dir("data/real/fifo"), 0600), 0);
	alarm(20); /* without the check the next line waits for ever */
	assert_int_equal(beneath_file(&b, "real/fifo", O_RDONLY), -ENXIO);
	alarm(0);
	assert_int_equal(beneath_file(&b, "real/fifo", O_RDWR), -ENXIO);
	assert_int_equal(beneath_file(&b, "real", O_RDONLY), -EISDIR);
	fd = beneath_file(&b, "real/file", O_RDWR | O_APPEND);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & (O_NONBLOCK | O_APPEND), O_APPEND);
	close(fd);
	beneath_close(&b);
}

/* The link is what goes, or gets another name: never what it names. */
static void test_links_are_names(void **state)
{
	struct beneath b = open_data();
	struct stat st;

	(void)state;
	assert_int_equal(beneath_remove(&b, "folder", true), -ENOTDIR);
	assert_int_equal(beneath_remove(&b, "folder", false), 0);
	assert_int_equal(beneath_rename(&b, "file", "real/moved"), 0);
	assert_int_equal(beneath_stat(&b, "real/moved", &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(beneath_rename(&b, "real/file", "dangling"), 0);
	must_be(in_dir("data/dangling"), "ours");
	for (const char *const *bad = (const char *const[]){"../victim", "/etc", "real/../near",
							    "real//file", "", NULL};
	     *bad; bad++)
		assert_int_equal(beneath_file(&b, *bad, O_RDONLY), -EINVAL);
	beneath_close(&b);
}

/* The folder is exchanged between two calls: all goes on in the one that was opened. */
static void test_exchanged_meanwhile(void **state)
{
	struct disk_file *f = NULL;
	struct index *ix = NULL;
	struct disk *d = NULL, *again = NULL;
	struct err e = {0};
	bool fresh;

	(void)state;
	assert_int_equal(disk_posix_open(in_dir("data"), "threads", &d, &e), 0);
	assert_int_equal(rename(in_dir("data"), in_dir("moved")), 0);
	assert_int_equal(symlink("victim", in_dir("data")), 0);
	assert_int_equal(disk_posix_again(d, "threads", &again, &e), 0);
	assert_int_equal(again->ops->open(again, "made", DISK_CREATE, &f), 0);
	again->ops->close(f);
	disk_posix_close(again);
	if (index_rocksdb_open(disk_posix_folder(d), in_dir("data/index"), &ix, &fresh, &e) < 0)
		fail_msg("%s", e.text);
	ix->ops->close(ix);
	disk_posix_close(d);
	assert_int_equal(access(in_dir("victim/index"), F_OK), -1);
	assert_int_equal(access(in_dir("victim/made"), F_OK), -1);
	assert_int_equal(access(in_dir("moved/index/CURRENT"), F_OK), 0);
	assert_int_equal(access(in_dir("moved/made"), F_OK), 0);
}

static void owned_by(const char *path, uid_t uid)
{
	struct stat st;

	assert_int_equal(lstat(in_dir(path), &st), 0);
	assert_int_equal(st.st_uid, uid);
}

/* Needs root, who alone can be another user: elsewhere the folder is its process's own. */
static void test_root_is_the_owner(void **state)
{
	bool root = geteuid() == 0;
	uid_t owner = root ? OWNER : geteuid();
	struct beneath b;
	int fd;

	(void)state;
	if (root) {
		assert_int_equal(chmod(dir, 0711), 0);
		assert_int_equal(chown(in_dir("data"), OWNER, OWNER), 0);
		assert_int_equal(chown(in_dir("data/real"), OWNER, OWNER), 0);
	}
	/* A name of root's own file in the user's folder, as by an unprotected hard link. */
	assert_int_equal(link(in_dir("victim/precious"), in_dir("data/hard")), 0);
	b = open_data();
	assert_int_equal(b.as_owner, root);
	fd = beneath_file(&b, "real/made", O_RDWR | O_CREAT | O_EXCL);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(beneath_mkdir(&b, "real/folder"), 0);
	owned_by("data/real/made", owner);
	owned_by("data/real/folder", owner);
	if (root) {
		assert_int_equal(beneath_file(&b, "hard", O_RDONLY), -EACCES);
		assert_int_equal(beneath_file(&b, "hard", O_RDWR | O_TRUNC), -EACCES);
	}
	fd = open(in_dir("victim/precious"), O_RDONLY); /* root is root again */
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(beneath_remove(&b, "hard", false), 0);
	beneath_close(&b);
}

static int check(struct err *e)
{
	struct beneath b = open_data();
	int r;

	err_clear(e);
	r = beneath_check_private(&b, in_dir("data"), e);
	beneath_close(&b);
	return r;
}

static void says(const struct err *e, const char *what, const char *repair)
{
	if (!strstr(e->text, what) || !strstr(e->text, repair))
		fail_msg("'%s' and '%s' in: %s", what, repair, e->text);
}

static void test_whom_a_daemon_trusts(void **state)
{
	struct err e = {0};
	char repair[300];

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(chmod(in_dir("data"), i ? 0755 : 0700), 0);
		if (check(&e) < 0)
			fail_msg("%s", e.text);
	}
	snprintf(repair, sizeof(repair), "'chmod go-w %s'", in_dir("data"));
	assert_int_equal(chmod(in_dir("data"), 0770), 0);
	assert_int_equal(check(&e), -EPERM);
	says(&e, "0770", repair);
	assert_int_equal(chmod(in_dir("data"), 01777), 0); /* what is in it can be added to */
	assert_int_equal(check(&e), -EPERM);
	says(&e, "1777", repair);
	assert_int_equal(chmod(in_dir("data"), 0700), 0);

	snprintf(repair, sizeof(repair), "'chmod go-w %s'", dir);
	assert_int_equal(chmod(dir, 0777), 0);
	assert_int_equal(check(&e), -EPERM);
	says(&e, "0777", repair);
	assert_int_equal(chmod(dir, 0720), 0);
	assert_int_equal(check(&e), -EPERM);
	says(&e, "0720", repair);
	assert_int_equal(chmod(dir, 01777), 0); /* only we and root may exchange it */
	assert_int_equal(check(&e), 0);
	assert_int_equal(chmod(dir, 0700), 0);
	if (geteuid() != 0)
		return;
	assert_int_equal(chown(in_dir("data"), OWNER, OWNER), 0);
	assert_int_equal(check(&e), -EPERM);
	says(&e, "belongs to user 65534", "runs as user 0");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(test_links_are_not_followed), T(test_links_are_names),
		T(test_exchanged_meanwhile),    T(test_root_is_the_owner),
		T(test_whom_a_daemon_trusts),   T(test_only_files_are_opened),
	};
	int failed = cmocka_run_group_tests_name("openat2", tests, NULL, NULL);

	mode = "off";
	failed += cmocka_run_group_tests_name("part by part", tests, NULL, NULL);
	return failed != 0;
}
