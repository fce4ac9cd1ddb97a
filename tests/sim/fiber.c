/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.c - fibers: begun by ucontext, switched by _setjmp(), which makes no system call. What
 * swapcontext() spends on the signal mask, which nobody changes, was a sixth of the simulator.
 *
 * glibc's checked longjmp() takes a jump to another stack for a mistake: not here.
 * The address sanitizer is told of every change of stack; a dropped fiber's stack is unpoisoned
 * before the next one uses it, because its frames never returned.
 */
#undef _FORTIFY_SOURCE
#include <config.h>

#include "tests/sim/fiber.h"

#include <assert.h>
#include <stddef.h>
#include <sys/mman.h>

#include "tests/sim/heap.h"

#define FIBER_STACK (512u << 10)
#define FIBER_GUARD 4096u

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(save, bottom, size) ((void)(save), (void)(bottom))
#define __sanitizer_finish_switch_fiber(fake, bottom, size) ((void)(fake), (void)(bottom))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr))
#endif

/* One world at a time runs on a thread; the pool only saves mmap calls. */
static _Thread_local struct {
	struct fiber driver, *current;
	const void *driver_bottom;
	size_t driver_size;
	char **stacks;
	size_t n_stacks, cap_stacks;
} here;

static char *stack_take(void)
{
	char *p;

	if (here.n_stacks) {
		p = here.stacks[--here.n_stacks];
		ASAN_UNPOISON_MEMORY_REGION(p, FIBER_STACK);
		return p;
	}
	p = mmap(NULL, FIBER_GUARD + FIBER_STACK, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED || mprotect(p, FIBER_GUARD, PROT_NONE) != 0)
		sim_check(NULL);
	return p + FIBER_GUARD;
}

void fiber_pool_free(void)
{
	while (here.n_stacks)
		munmap(here.stacks[--here.n_stacks] - FIBER_GUARD, FIBER_GUARD + FIBER_STACK);
	free(here.stacks);
	here.stacks = NULL;
	here.cap_stacks = 0;
}

static void entry(void)
{
	struct fiber *f = here.current;

	__sanitizer_finish_switch_fiber(NULL, &here.driver_bottom, &here.driver_size);
	f->run(f->arg);
	f->ended = true;
	fiber_park();
	abort(); /* an ended fiber was resumed */
}

void fiber_init(struct fiber *f, void (*run)(void *arg), void *arg)
{
	*f = (struct fiber){ .run = run, .arg = arg, .stack = stack_take() };
	if (getcontext(&f->context) != 0)
		sim_check(NULL);
	f->context.uc_stack.ss_sp = f->stack;
	f->context.uc_stack.ss_size = FIBER_STACK;
	makecontext(&f->context, entry, 0);
	/* The sanitizer forgets all it knows of a context's stack at every swapcontext(), which
	 * also costs more than the rest of the simulator; it is told of the changes anyway. It does
	 * the same at every longjmp(), of whatever stack it is on. */
	f->context.uc_stack.ss_size = 0;
}

/* Returns when somebody goes back to `from`. */
#ifdef __SANITIZE_ADDRESS__
static void go(struct fiber *from, struct fiber *to)
{
	if (swapcontext(&from->context, &to->context) != 0)
		abort();
}
#else
static void go(struct fiber *from, struct fiber *to)
{
	if (_setjmp(from->where) != 0)
		return;
	if (to == &here.driver || to->begun)
		_longjmp(to->where, 1);
	to->begun = true;
	setcontext(&to->context);
	abort(); /* it returned */
}
#endif

void fiber_resume(struct fiber *f)
{
	assert(!here.current && f->stack && !f->ended);
	here.current = f;
	__sanitizer_start_switch_fiber(&here.driver.sanitizer, f->stack, FIBER_STACK);
	go(&here.driver, f);
	__sanitizer_finish_switch_fiber(here.driver.sanitizer, NULL, NULL);
	here.current = NULL;
}

void fiber_park(void)
{
	struct fiber *f = here.current;

	assert(f);
	__sanitizer_start_switch_fiber(f->ended ? NULL : &f->sanitizer, here.driver_bottom,
				       here.driver_size);
	go(f, &here.driver);
	__sanitizer_finish_switch_fiber(f->sanitizer, &here.driver_bottom, &here.driver_size);
}

void fiber_drop(struct fiber *f)
{
	if (!f->stack)
		return;
	assert(here.current != f);
	sim_grow(here.stacks, here.n_stacks, here.cap_stacks);
	here.stacks[here.n_stacks++] = f->stack;
	f->stack = NULL;
}
