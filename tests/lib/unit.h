/* What every unit test includes: cmocka with the headers it forgets, and a skip that says why. */
#ifndef TURNWARD_TESTS_LIB_UNIT_H
#define TURNWARD_TESTS_LIB_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define CLAIM(function) cmocka_unit_test(function)

/* Ends the running test as skipped; the reason is printed as a TAP comment and shown by tests/run.
 */
#define test_skip(reason)                                               \
	do {                                                            \
		print_message("# skipped: %s: %s\n", __func__, reason); \
		skip();                                                 \
	} while (0)

#endif
