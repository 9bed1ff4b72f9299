# Where the real engines lie, and their versions; read by setup and start.
# shellcheck shell=bash
vllm_version=0.32.0
sglang_version=0.5.23
place=${TURNWARD_REAL:-${XDG_CACHE_HOME:-$HOME/.cache}/turnward-real}

# installed FOLDER PACKAGE VERSION: the virtual environment has it.
installed() {
	local found
	[ -x "$1/bin/python" ] &&
		found=$("$1/bin/python" - "$2" 2>/dev/null <<-'END'
			import sys
			from importlib.metadata import version
			print(version(sys.argv[1]))
		END
		) && [ "$found" = "$3" ]
}
