#!/bin/bash
# Holds pure libraries to what they may call: purity.sh policy|pure ARCHIVE...
kind=$1
shift
if ! command -v nm >/dev/null; then
	echo "skipped: nm is not installed"
	exit 77
fi

# What the compiler itself emits, the checked forms of mem*, and assert().
emitted='__assert_fail|mem(cpy|move|set|cmp)|__mem(cpy|move|set)_chk|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_'
libm='sqrt|pow|exp|exp2|expm1|log|log2|log10|log1p|floor|ceil|fmod|fmin|fmax|round'
libm="$libm|l?lround|l?lrint|rint|nearbyint|trunc|ldexp|frexp|hypot|fabs|cbrt"
# No input, no output, no clock, no memory of its own, no chance.
impure='open(at|64)?|fopen(64)?|read|write|pread(64)?|pwrite(64)?|send(to|msg)?'
impure="$impure|recv(from|msg)?|socket|connect|accept4?|poll|select|epoll_.*|io_uring_.*"
impure="$impure|mmap(64)?|fcntl(64)?|ioctl|malloc|calloc|realloc|free|strdup|strndup|posix_memalign|aligned_alloc"
impure="$impure|clock_gettime|gettimeofday|time|nanosleep|usleep|sleep|rand|random|rand_r|getrandom"
impure="$impure|printf|__printf_chk|fprintf|__fprintf_chk|puts|fputs|fwrite|syslog|getenv"
impure="$impure|stderr|stdout|pthread_.*|fork|exec.*|kill|signal|sigaction|exit|system"
impure="$impure|syscall"

bad=0
for archive in "$@"; do
	if [ ! -e "$archive" ]; then
		echo "skipped: $archive has not been built"
		exit 77
	fi
	# Symbols that one member needs and another of the same archive has are no arrows out.
	own=$(nm --defined-only "$archive" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u)
	needs=$(nm --undefined-only "$archive" 2>/dev/null | awk '$1 == "U" { print $2 }' | sort -u)
	outward=$(comm -23 <(echo "$needs") <(echo "$own"))
	if [ -z "$own" ]; then
		echo "$archive: holds no symbols"
		bad=1
	elif [ "$kind" = policy ]; then
		wrong=$(echo "$outward" | grep -vxE "($emitted|$libm)?")
	else
		wrong=$(echo "$outward" | grep -xE "$impure")
	fi
	for symbol in $wrong; do
		echo "$archive: needs $symbol, which $kind code may not call"
		bad=1
	done
done
exit $bad
