/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numbers.c - medians, figures, and how they are printed.
 */
#include <config.h>

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

void series_add(struct series *s, double value, double limit)
{
	assert(s->n < PAIRS_MAX);
	s->value[s->n] = value;
	s->limit[s->n] = limit;
	s->n++;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(const double *v, int n)
{
	double sorted[PAIRS_MAX];

	assert(n > 0 && n <= PAIRS_MAX);
	memcpy(sorted, v, (size_t)n * sizeof(*v));
	qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void figure_of(struct figure *f, const struct series *s)
{
	double ratio[PAIRS_MAX];

	f->min = f->max = s->value[0];
	f->limit_min = f->limit_max = s->limit[0];
	for (int i = 0; i < s->n; i++) {
		ratio[i] = s->value[i] / s->limit[i];
		f->min = fmin(f->min, s->value[i]);
		f->max = fmax(f->max, s->value[i]);
		f->limit_min = fmin(f->limit_min, s->limit[i]);
		f->limit_max = fmax(f->limit_max, s->limit[i]);
	}
	f->value = median(s->value, s->n);
	f->limit = median(s->limit, s->n);
	f->ratio = f->of_medians ? f->value / f->limit : median(ratio, s->n);
	f->runs = s->n;
}

bool figure_met(const struct figure *f)
{
	double x = f->target_of == TARGET_RATIO ? f->ratio : f->value;

	if (f->faults > 0)
		return false;
	if (f->target_of == TARGET_SUM)
		return f->value <= f->target * f->limit + f->plus;
	return f->at_least ? x >= f->target : x <= f->target;
}

/* Four digits are more than any of this is worth. */
static void print_number(double v)
{
	if (v != 0 && (fabs(v) < 0.01 || fabs(v) >= 1e6))
		printf("%10.3g", v);
	else
		printf("%10.*f", fabs(v) >= 1000 ? 0 : fabs(v) >= 10 ? 1 : 3, v);
}

static void print_target(const struct figure *f)
{
	if (f->target_of == TARGET_SUM)
		printf("target <= %g x limit + %g %s", f->target, f->plus, f->unit);
	else
		printf("target %s %g of %s", f->at_least ? ">=" : "<=", f->target,
		       f->target_of == TARGET_RATIO ? "ratio" : "value");
	printf(": %s\n", figure_met(f) ? "met" : "MISSED");
}

static void print_text(const struct figure *f)
{
	printf("%-20s", f->name);
	print_number(f->value);
	printf(" %-12s [", f->unit);
	print_number(f->min);
	printf(" ");
	print_number(f->max);
	printf(" ] n=%-3d limit", f->runs);
	print_number(f->limit);
	printf("  ratio %6.3f  ", f->ratio);
	print_target(f);
	printf("%20s limit: %s [", "", f->limit_name);
	print_number(f->limit_min);
	printf(" ");
	print_number(f->limit_max);
	printf(" ]\n");
	if (f->faults >= 0)
		printf("%20s page faults in a save (ru_minflt), at most: %ld\n", "", f->faults);
	if (f->note[0])
		printf("%20s %s\n", "", f->note);
}

static void print_json(const struct figure *f)
{
	json_t *o = json_pack("{s:s,s:f,s:s,s:f,s:s,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:b}", "case",
			      f->name, "value", f->value, "unit", f->unit, "limit", f->limit,
			      "limit_name", f->limit_name, "ratio", f->ratio, "runs", f->runs,
			      "min", f->min, "max", f->max, "limit_min", f->limit_min, "limit_max",
			      f->limit_max, "target", f->target, "met", figure_met(f));

	if (o && f->target_of == TARGET_SUM)
		json_object_set_new(o, "plus", json_real(f->plus));
	if (o && f->faults >= 0)
		json_object_set_new(o, "faults", json_integer(f->faults));
	if (o && f->note[0])
		json_object_set_new(o, "note", json_string(f->note));
	if (o)
		json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(o);
}

void figure_print(const struct figure *f, bool json)
{
	if (json)
		print_json(f);
	else
		print_text(f);
	fflush(stdout);
}
