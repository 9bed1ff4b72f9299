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

/* 1 where a sanitizer makes a fork cost 20 times as much and takes SIGBUS for itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

#endif
