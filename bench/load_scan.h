/* The cost of scanning and hashing a megabyte of chat, in 16 KiB arrivals, least of many. */
#ifndef TURNWARD_BENCH_LOAD_SCAN_H
#define TURNWARD_BENCH_LOAD_SCAN_H

double load_scan_mb_us(void);

#endif
