/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_rules.h - what a layout is made of, for those that make one: the named layouts
 * (model/layout_spec.c) and the layout file (tools/layout_file.c).
 *
 * Made by layout_new() and the layout_add functions, then checked as a whole by layout_check().
 */
#ifndef MODEL_LAYOUT_RULES_H
#define MODEL_LAYOUT_RULES_H

#include "model/layout.h"

#define LAYOUT_AXES_MAX     16u
#define LAYOUT_AXIS_NAME    16u /* bytes with the NUL */
#define LAYOUT_OVER_MAX     4u
#define LAYOUT_CUTS_MAX     8u /* of one rule */
#define LAYOUT_PARTS_MAX    8u /* of one dimension */
#define LAYOUT_SEGMENTS_MAX 16u
#define LAYOUT_PLACES_MAX   4u
#define LAYOUT_FLATS_MAX    8u
#define LAYOUT_GLOBS_MAX    256u
#define LAYOUT_RULES_MAX    4096u

/* Patterns of names: '*' any bytes, '?' one, '#' a whole decimal number. */
struct layout_globs {
	char **glob;
	uint32_t n;
};

struct layout_axis {
	char name[LAYOUT_AXIS_NAME];
	uint32_t size, stride; /* of rank numbers: coordinate = rank / stride % size */
};

/* One or several axes taken as one, row-major in this order. */
struct layout_over {
	uint32_t n;
	uint8_t axis[LAYOUT_OVER_MAX];
};

enum layout_how { LAYOUT_EVEN, LAYOUT_CHUNK, LAYOUT_FLOOR };

struct layout_part {
	uint64_t weight; /* the part has length * weight / sum of weights */
	uint64_t units;  /* as in the cut */
};

struct layout_cut {
	uint32_t dim;
	struct layout_over over;
	enum layout_how how;
	uint64_t units; /* even: cut between units only; fewer than parts: parts share them. 0: off
			 */
	uint64_t pad;   /* chunk: the length is rounded up to a multiple of it. 0: off */
	uint32_t n_parts; /* 0: the dimension is one */
	struct layout_part parts[LAYOUT_PARTS_MAX];
};

enum layout_unit { LAYOUT_UNIT_TENSOR, LAYOUT_UNIT_ALL, LAYOUT_UNIT_NUMBER };

struct layout_flat {
	struct layout_over over;
	bool params, moments; /* of which it is */
	enum layout_how how;
	uint64_t pad;   /* chunk, as in the cut */
	uint64_t align; /* of a tensor's first element in the unit. 0: off */
	enum layout_unit unit;
	struct layout_globs numbers; /* unit by number: names that are alike up to the number */
	bool reverse; /* the unit has its tensors in the order opposite to layout_begin()'s */
};

#define LAYOUT_FLAT_OFF     (-1)
#define LAYOUT_FLAT_DEFAULT (-2) /* of a rule: the layout's */

struct layout_rule {
	struct layout_globs globs; /* any of them */
	bool params, moments;      /* of which it is */
	bool fallback;             /* strict: does not make a name known */
	uint32_t n_cuts;
	struct layout_cut cuts[LAYOUT_CUTS_MAX]; /* in order: each cuts what the one before left */
	int flat; /* number of a flat cut, LAYOUT_FLAT_OFF or LAYOUT_FLAT_DEFAULT */
};

/* A number in the name says where along an axis a tensor is. */
struct layout_place {
	uint8_t axis;
	uint32_t count;  /* of numbers (layers, experts); 0: layout_begin() finds it */
	uint32_t rounds; /* pieces of consecutive numbers go round the axis so often; 1: once */
	uint32_t *sizes; /* numbers in each of size * rounds pieces, or NULL: even */
	struct layout_globs numbers;           /* each with one '#' */
	struct layout_globs first, last, both; /* ends of the axis, for names without number */
};

struct layout_units; /* model/layout_units.c */

struct layout {
	uint32_t world;
	uint32_t n_axes, n_places, n_flats, n_rules;
	struct layout_axis axes[LAYOUT_AXES_MAX];
	struct layout_place places[LAYOUT_PLACES_MAX];
	struct layout_flat flats[LAYOUT_FLATS_MAX];
	struct layout_rule *rules;
	struct layout_globs moments; /* each with one '*': where the parameter's name is */
	int flat;    /* of tensors whose rule does not say: a number or LAYOUT_FLAT_OFF */
	bool strict; /* a name that no rule matches is an error */
	struct layout_units *units; /* NULL before layout_begin() */
};

MUST_CHECK int layout_new(uint32_t world, struct layout **ret, struct err *e);
/* -ENOMEM, -EINVAL: wrong text. */
MUST_CHECK int layout_globs_add(struct layout_globs *g, const char *glob, uint32_t numbers,
				struct err *e);
void layout_globs_free(struct layout_globs *g);
MUST_CHECK int layout_add_axis(struct layout *l, const char *name, uint32_t size, uint32_t stride,
			       struct err *e);
/* -1: there is none of that name. */
int layout_find_axis(const struct layout *l, const char *name);
/* The new one, all zero but for flat (its default) and both kinds of tensors; NULL: no memory or
 * too many. It is valid until the next one is added. */
struct layout_rule *layout_add_rule(struct layout *l);
/* The patterns of moments that are used where nobody names others. */
MUST_CHECK int layout_add_moments(struct layout *l, struct err *e);
/* What can be checked without a tensor. */
MUST_CHECK int layout_check(const struct layout *l, struct err *e);

/* ---- Between the files of model/layout*.c ---- */

struct layout_number {
	bool found;
	uint32_t value; /* UINT32_MAX: that or more */
	uint32_t end;   /* the byte after its digits */
};
bool layout_glob(const char *glob, const char *name, uint32_t len, struct layout_number *ret);
bool layout_globs_match(const struct layout_globs *g, const char *name, uint32_t len,
			struct layout_number *ret);

/* One dimension as a rank has it: pieces of the tensor's, rising, one behind the other. */
struct layout_segments {
	uint32_t n; /* at least 1 */
	uint64_t offset[LAYOUT_SEGMENTS_MAX], length[LAYOUT_SEGMENTS_MAX];
	uint64_t total;
};

/* What a rank has of a tensor before the flat cut. */
struct layout_local {
	const char *base; /* the name without what makes it a moment's */
	uint32_t base_len;
	int moment;                     /* number of the pattern; -1: a parameter */
	const struct layout_rule *rule; /* may be NULL */
	int flat;                       /* number, or LAYOUT_FLAT_OFF */
	bool here;
	struct layout_segments dim[CKPT_NDIM_MAX];
	uint64_t elements; /* 0 if it is not here */
};

/* All of a tensor. */
struct shard layout_whole(const struct layout_tensor *t);
uint32_t layout_over_size(const struct layout *l, const struct layout_over *o);
uint32_t layout_over_at(const struct layout *l, const struct layout_over *o, uint32_t rank);
/* Part i of n of [0, length). */
MUST_CHECK int layout_part_range(const struct layout_cut *c, uint64_t units, uint64_t length,
				 uint32_t n, uint32_t i, uint64_t ret[2], struct err *e);
MUST_CHECK int layout_cut_segments(const struct layout *l, const struct layout_cut *c,
				   uint32_t rank, struct layout_segments *s, struct err *e);
/* Sets base and moment. */
void layout_strip(const struct layout *l, const struct layout_tensor *t, struct layout_local *ret);
MUST_CHECK int layout_local(const struct layout *l, const struct layout_tensor *t, uint32_t rank,
			    struct layout_local *ret, struct err *e);
/* Where the tensor begins in its unit on this rank, and the unit's elements. */
MUST_CHECK int layout_unit_at(struct layout *l, const struct layout_tensor *t,
			      const struct layout_local *at, uint32_t rank, uint64_t *ret_offset,
			      uint64_t *ret_total, struct err *e);
/* How many numbers a place has; 0: unknown. */
uint32_t layout_place_count(const struct layout *l, uint32_t place);
void layout_units_free(struct layout_units *u);

#endif
