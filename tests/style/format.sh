#!/bin/bash
# Compares every C file with what clang-format makes of it.
cd "$(dirname "$0")/../.." || exit 1
if ! command -v clang-format >/dev/null; then
	echo "skipped: clang-format is not installed"
	exit 77
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.c' '*.h' 2>/dev/null ||
	find shm router agent bpf bench tests -name '*.[ch]' 2>/dev/null)
for file in "${files[@]}"; do
	[ -f "$file" ] && echo "$file"
done | xargs -r clang-format --dry-run --Werror
