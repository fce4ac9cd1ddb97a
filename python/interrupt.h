/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - what a signal handler of Python raises while a call of libckpt waits. */
#ifndef PYTHON_INTERRUPT_H
#define PYTHON_INTERRUPT_H

#include "python/look.h"

/*
 * For ckpt_options.interrupted: runs the Python handlers of the signals that have come; other than
 * 0 where one raised, and interrupt_raise() will. main_thread: the pthread_t of Python's main
 * thread as a pointer; on any other there is nothing to run. Called without the interpreter's lock.
 */
int interrupt_asked(void *main_thread);
/* As a ctypes errcheck: raises what interrupt_asked() kept on this thread, else returns args[0],
 * the result. With the interpreter's lock. */
PyObject *interrupt_raise(PyObject *self, PyObject *const *args, Py_ssize_t n_args);

#endif
