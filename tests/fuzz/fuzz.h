/* The one function that every fuzz target defines; libFuzzer or driver.c calls it. */
#ifndef TURNWARD_TESTS_FUZZ_FUZZ_H
#define TURNWARD_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
