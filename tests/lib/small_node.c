/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/small_node.h"

#include <stdio.h>

#include "tests/lib/test.h"

const struct shard small_shard = {
	.name = "w", .name_len = 1, .dtype = CKPT_F32, .global = {1, {64}}, .box = {1, {0}, {64}}};

int small_node_setup(void **state)
{
	static struct small_node s;

	s.dir = test_dir_make(NULL);
	snprintf(s.socket, sizeof(s.socket), "%s/sock", s.dir);
	node_options_default(&s.options);
	s.options.geometry = SMALL_GEOMETRY;
	s.options.transfer = 65536;
	s.options.disk_reserve = 0;
	*state = &s;
	return 0;
}

int small_node_setup_started(void **state)
{
	int r = small_node_setup(state);

	small_node_start(*state);
	return r;
}

int small_node_teardown(void **state)
{
	struct small_node *s = *state;

	host_stop(&s->host);
	test_dir_remove(s->dir);
	return 0;
}

void small_node_start(struct small_node *s)
{
	small_node_start_with(s, (struct host_options){0});
}

void small_node_start_with(struct small_node *s, struct host_options o)
{
	struct err e = {0};

	o.folder = s->dir;
	o.socket = s->socket;
	o.backend = "threads";
	o.node = &s->options;
	if (host_start(&s->host, &o, &e) < 0)
		fail_msg("%s", e.text);
}
