/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.c - see interrupt.h.
 *
 * CPython's C handler of a signal only notes it, and the main thread runs the Python handler
 * between two bytecodes: not before a call of libckpt has returned, which goes on after a signal.
 * So libckpt asks in its waits. What the handler raises is kept until the call has returned to
 * ctypes, which takes an exception that is set meanwhile for an error of its own.
 *
 *   1. An exception is kept only until the call that asked has ended: one for each thread is
 *      enough. A handler that calls libckpt itself takes what that call has kept before it raises.
 *   2. This is no callback in Python, as Python runs handlers before the callback's first bytecode
 *      too, where the callback cannot catch what they raise.
 */
#include <config.h>

#include "python/interrupt.h"

#include <assert.h>
#include <pthread.h>

static _Thread_local struct {
	PyObject *type, *value, *traceback; /* type NULL: nothing is kept */
} kept;

int interrupt_asked(void *main_thread)
{
	PyGILState_STATE state;
	int r;

	if (kept.type)
		return 1; /* it is raised when a call returns that may have asked */
	/* An interpreter that ends runs no handlers, and ends a thread that asks for its lock. */
	if ((uintptr_t)pthread_self() != (uintptr_t)main_thread || !Py_IsInitialized())
		return 0;
	state = PyGILState_Ensure();
	assert(!PyErr_Occurred()); /* ctypes calls with none */
	r = PyErr_CheckSignals();
	assert(!kept.type); /* (1) */
	if (r < 0)
		PyErr_Fetch(&kept.type, &kept.value, &kept.traceback);
	PyGILState_Release(state);
	return r;
}

PyObject *interrupt_raise(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	(void)self;
	if (n_args < 1)
		return PyErr_Format(PyExc_TypeError, "raise_kept(result, function, arguments)");
	if (!kept.type) {
		Py_INCREF(args[0]);
		return args[0];
	}
	PyErr_Restore(kept.type, kept.value, kept.traceback);
	kept.type = kept.value = kept.traceback = NULL;
	return NULL;
}
