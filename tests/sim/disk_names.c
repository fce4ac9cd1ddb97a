/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_names.c - folders of the simulated disk: live names, stable names, changes between them.
 *
 *   (1) A folder's stable names are always those after some prefix of its changes.
 *   (2) A change that concerns two folders is stable in both or in neither; making it stable makes
 *       everything before it in both folders stable.
 *   (3) A folder that is removed had its own changes made first (rmdir depends on it).
 */
#include <config.h>

#include <assert.h>

#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

void names_init(struct names *n)
{
	*n = (struct names){ 0 };
	list_init(&n->inodes);
	n->root = inode_new(n, true);
}

struct inode *inode_new(struct names *n, bool is_dir)
{
	struct inode *i = sim_zero(sizeof(*i));

	i->number = ++n->next_number;
	i->is_dir = is_dir;
	list_add_tail(&n->inodes, &i->link);
	return i;
}

static void names_clear(struct name *names, size_t *n)
{
	for (size_t i = 0; i < *n; i++)
		free(names[i].name);
	*n = 0;
}

static void inode_free(struct inode *i)
{
	names_clear(i->folder.live, &i->folder.n_live);
	names_clear(i->folder.stable, &i->folder.n_stable);
	free(i->folder.live);
	free(i->folder.stable);
	content_free(&i->content);
	list_del(&i->link);
	free(i);
}

static void change_free(struct name_change *c)
{
	for (int i = 0; i < c->n_entries; i++)
		free(c->entry[i].name);
}

void names_free(struct names *n)
{
	struct inode *i, *tmp;

	for (size_t c = 0; c < n->n_changes; c++)
		change_free(&n->changes[c]);
	free(n->changes);
	list_each_safe(i, tmp, &n->inodes, link)
		inode_free(i);
}

/* ---- One set of names, in the order of making (walks show it) ---- */

static void set_live(struct folder *f, const char *name, struct inode *inode)
{
	size_t i = 0;

	while (i < f->n_live && strcmp(f->live[i].name, name) != 0)
		i++;
	if (!inode) {
		assert(i < f->n_live);
		free(f->live[i].name);
		memmove(&f->live[i], &f->live[i + 1], (f->n_live - i - 1) * sizeof(*f->live));
		f->n_live--;
	} else if (i < f->n_live) {
		f->live[i].inode = inode;
	} else {
		sim_grow(f->live, f->n_live, f->cap_live);
		f->live[f->n_live++] = (struct name){ sim_str(name), inode };
	}
}

static void set_stable(struct folder *f, const char *name, struct inode *inode)
{
	size_t i = 0;

	while (i < f->n_stable && strcmp(f->stable[i].name, name) != 0)
		i++;
	if (!inode) {
		assert(i < f->n_stable);
		free(f->stable[i].name);
		f->stable[i] = f->stable[--f->n_stable];
	} else if (i < f->n_stable) {
		f->stable[i].inode = inode;
	} else {
		sim_grow(f->stable, f->n_stable, f->cap_stable);
		f->stable[f->n_stable++] = (struct name){ sim_str(name), inode };
	}
}

struct inode *folder_get(const struct inode *folder, const char *name)
{
	const struct folder *f = &folder->folder;

	for (size_t i = 0; i < f->n_live; i++) {
		if (strcmp(f->live[i].name, name) == 0)
			return f->live[i].inode;
	}
	return NULL;
}

struct inode *names_parent(struct names *n, const char *path, const char **ret_name)
{
	struct inode *at = n->root;
	const char *slash;
	char part[DISK_PATH_MAX + 1];

	assert(strlen(path) <= DISK_PATH_MAX && path[0] != '/' && !strstr(path, ".."));
	for (; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
		memcpy(part, path, (size_t)(slash - path));
		part[slash - path] = '\0';
		at = folder_get(at, part);
		if (!at || !at->is_dir)
			return NULL;
	}
	*ret_name = path;
	return at;
}

struct inode *names_find(struct names *n, const char *path)
{
	const char *name;
	struct inode *parent;

	if (*path == '\0')
		return n->root;
	parent = names_parent(n, path, &name);
	return parent ? folder_get(parent, name) : NULL;
}

uint64_t names_links(struct names *n, const struct inode *inode)
{
	struct inode *f;
	uint64_t links = 0;

	list_each(f, &n->inodes, link) {
		for (size_t i = 0; i < f->folder.n_live; i++)
			links += f->folder.live[i].inode == inode;
	}
	return links;
}

/* ---- Changes ---- */

static struct name_change *change_new(struct names *n)
{
	sim_grow(n->changes, n->n_changes, n->cap_changes);
	n->changes[n->n_changes] = (struct name_change){ 0 };
	return &n->changes[n->n_changes++];
}

static void add_entry(struct name_change *c, struct inode *folder, const char *name,
		      struct inode *inode)
{
	assert(folder->is_dir && c->n_entries < 2);
	c->entry[c->n_entries].folder = folder;
	c->entry[c->n_entries].inode = inode;
	c->entry[c->n_entries++].name = sim_str(name);
	set_live(&folder->folder, name, inode);
}

void names_set(struct names *n, struct inode *folder, const char *name, struct inode *inode,
	       struct inode *also)
{
	struct name_change *c = change_new(n);

	add_entry(c, folder, name, inode);
	c->also = also;
}

void names_move(struct names *n, struct inode *from, const char *from_name, struct inode *to,
		const char *to_name, struct inode *inode)
{
	struct name_change *c = change_new(n);

	add_entry(c, from, from_name, NULL);
	add_entry(c, to, to_name, inode);
}

/* The folders of a change; NULL-padded. */
static void folders_of(const struct name_change *c, struct inode *ret[3])
{
	ret[0] = c->entry[0].folder;
	ret[1] = c->n_entries > 1 ? c->entry[1].folder : NULL;
	ret[2] = c->also;
}

static void make_stable(struct name_change *c)
{
	for (int i = 0; i < c->n_entries; i++)
		set_stable(&c->entry[i].folder->folder, c->entry[i].name, c->entry[i].inode);
}

static void clear_marks(struct names *n)
{
	struct inode *i;

	list_each(i, &n->inodes, link)
		i->marked = false;
}

/* Makes stable what folder's changes among the first `limit` need, going back over them once. */
static void sync_first(struct names *n, struct inode *folder, size_t limit)
{
	bool *needed = sim_zero(n->n_changes);
	struct inode *f[3];
	size_t kept = 0;

	clear_marks(n);
	folder->marked = true;
	for (size_t i = limit; i-- > 0;) {
		folders_of(&n->changes[i], f);
		for (int k = 0; k < 3; k++)
			needed[i] |= f[k] && f[k]->marked;
		for (int k = 0; k < 3 && needed[i]; k++) {
			if (f[k])
				f[k]->marked = true;
		}
	}
	for (size_t i = 0; i < n->n_changes; i++) {
		if (needed[i]) {
			make_stable(&n->changes[i]);
			change_free(&n->changes[i]);
		} else {
			n->changes[kept++] = n->changes[i];
		}
	}
	n->n_changes = kept;
	free(needed);
}

void names_sync(struct names *n, struct inode *folder)
{
	assert(folder->is_dir);
	sync_first(n, folder, n->n_changes);
}

void names_sync_failed(struct names *n, struct inode *folder, struct world *w)
{
	assert(folder->is_dir);
	sync_first(n, folder, (size_t)world_random(w, n->n_changes + 1));
}

/* ---- Power loss ---- */

static void copy_stable_to_live(struct inode *i)
{
	struct folder *f = &i->folder;

	names_clear(f->live, &f->n_live);
	for (size_t k = 0; k < f->n_stable; k++) {
		sim_grow(f->live, f->n_live, f->cap_live);
		f->live[f->n_live++] =
			(struct name){ sim_str(f->stable[k].name), f->stable[k].inode };
	}
}

void names_power_loss(struct names *n, struct world *w)
{
	/* 0: nothing of any folder, 1: everything, else each folder ends somewhere. */
	unsigned mood = (unsigned)world_random(w, 4);
	struct inode *f[3], *inode;

	clear_marks(n); /* marked: nothing later of this folder is kept */
	for (size_t i = 0; i < n->n_changes; i++) {
		bool cut = false;

		folders_of(&n->changes[i], f);
		for (int k = 0; k < 3; k++)
			cut |= f[k] && f[k]->marked;
		cut = cut || mood == 0 || (mood > 1 && world_one_in(w, mood == 2 ? 3 : 10));
		for (int k = 0; k < 3; k++) {
			if (f[k])
				f[k]->marked |= cut;
		}
		if (!cut)
			make_stable(&n->changes[i]);
		change_free(&n->changes[i]);
	}
	n->n_changes = 0;
	list_each(inode, &n->inodes, link)
		copy_stable_to_live(inode);
	names_collect(n);
}

/* ---- Collecting ---- */

static void reach(struct inode *i)
{
	if (!i || i->reached)
		return;
	i->reached = true;
	for (size_t k = 0; k < i->folder.n_live; k++)
		reach(i->folder.live[k].inode);
	for (size_t k = 0; k < i->folder.n_stable; k++)
		reach(i->folder.stable[k].inode);
}

void names_collect(struct names *n)
{
	struct inode *i, *tmp;

	list_each(i, &n->inodes, link)
		i->reached = false;
	reach(n->root);
	for (size_t c = 0; c < n->n_changes; c++) {
		reach(n->changes[c].also);
		for (int k = 0; k < n->changes[c].n_entries; k++) {
			reach(n->changes[c].entry[k].folder);
			reach(n->changes[c].entry[k].inode);
		}
	}
	list_each(i, &n->inodes, link) {
		if (i->opens)
			reach(i);
	}
	list_each_safe(i, tmp, &n->inodes, link) {
		if (!i->reached)
			inode_free(i);
	}
}
