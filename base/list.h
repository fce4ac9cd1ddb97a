/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - doubly linked list whose links stand in the members. An empty list points to itself;
 * a member that is in no list points to itself, so that list_del() may be called twice.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next, *prev;
};

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}
static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}
static inline void list_add_tail(struct list *head, struct list *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}
static inline void list_add_head(struct list *head, struct list *l)
{
	list_add_tail(head->next, l);
}
static inline void list_del(struct list *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	list_init(l);
}

#define list_first(head, type, member)                                                             \
	(list_empty(head) ? NULL : container_of((head)->next, type, member))
#define list_last(head, type, member)                                                              \
	(list_empty(head) ? NULL : container_of((head)->prev, type, member))
/* The body must not free or unlink pos; the _safe form allows it for pos alone. */
#define list_each(pos, head, member)                                                               \
	for (pos = container_of((head)->next, __typeof__(*pos), member); &pos->member != (head);   \
	     pos = container_of(pos->member.next, __typeof__(*pos), member))
#define list_each_safe(pos, tmp, head, member)                                                     \
	for (pos = container_of((head)->next, __typeof__(*pos), member),                           \
	    tmp = container_of(pos->member.next, __typeof__(*pos), member);                        \
	     &pos->member != (head);                                                               \
	     pos = tmp, tmp = container_of(tmp->member.next, __typeof__(*pos), member))

#endif
