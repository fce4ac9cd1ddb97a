/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_node.h - set-up and teardown of cmocka for tests of a node in the process (host.h) whose
 * chunks are small and whose disk need keep nothing free. What still runs is stopped.
 */
#ifndef TESTS_LIB_SMALL_NODE_H
#define TESTS_LIB_SMALL_NODE_H

#include "model/tensor.h"
#include "tests/lib/host.h"

#define SMALL_GEOMETRY ((struct geometry){4096, 16384})

struct small_node {
	char *dir, socket[160];
	struct node_options options;
	struct host host;
};

/* *state: a struct small_node that is not started yet, so that its options can be changed. */
int small_node_setup(void **state);
int small_node_teardown(void **state);
/* One that is. */
int small_node_setup_started(void **state);

/* Fails the test where it does not start. With options but for folder, socket, back-end, node. */
void small_node_start(struct small_node *s);
void small_node_start_with(struct small_node *s, struct host_options o);

/* A tensor of 64 elements, whole. */
extern const struct shard small_shard;

#endif
