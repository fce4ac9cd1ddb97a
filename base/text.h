/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - text that quotes what came from outside, made fit for terminals and JSON.
 *
 * Called once, where a sentence is made: after that nobody need ask again.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

/* In place. What is no UTF-8, and control characters (those from U+0080 to U+009F too), become '?',
 * a byte each; a last character that was cut goes. */
void text_clean(char *text);

#endif
