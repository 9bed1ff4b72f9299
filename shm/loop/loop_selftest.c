/* The start-up check of io_uring. */
extern const int loop_selftest_placeholder;
const int loop_selftest_placeholder = 1;
