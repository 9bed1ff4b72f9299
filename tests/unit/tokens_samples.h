/* Text of the kinds that agents send, written for this test, with the number of tokens that Qwen's
 * public vocabulary (151,643 merges) gives it; included by test_tokens.c. */
{ "The night train leaves the harbour at ten and reaches the mountains before dawn. No"
  "body on the platform seemed surprised when the announcement said that it would wait"
  " for the ferry, because it always does. An old man sold chestnuts from a cart, two "
  "students argued about a film they had not seen, and the conductor counted the carri"
  "ages twice. When the doors closed the rain had already stopped.",
  78 },
	{ "def merge_intervals(intervals):\n"
	  "    \"\"\"Joins the intervals that overlap; the input need not be sorted.\"\"\"\n"
	  "    merged = []\n"
	  "    for start, end in sorted(intervals):\n"
	  "        if merged and start <= merged[-1][1]:\n"
	  "            merged[-1][1] = max(merged[-1][1], end)\n"
	  "        else:\n"
	  "            merged.append([start, end])\n"
	  "    return [tuple(pair) for pair in merged]\n"
	  "\n"
	  "\n"
	  "class Calendar:\n"
	  "    def __init__(self, owner, bookings=None):\n"
	  "        self.owner = owner\n"
	  "        self.bookings = merge_intervals(bookings or [])\n"
	  "\n"
	  "    def is_free(self, moment):\n"
	  "        return not any(start <= moment < end for start, end in self.bookings)\n",
	  146 },
	{ "static int queue_push(struct queue *queue, const struct item *item)\n"
	  "{\n"
	  "\tuint32_t next = (queue->head + 1) % QUEUE_SIZE;\n"
	  "\n"
	  "\tif (next == queue->tail)\n"
	  "\t\treturn -ENOSPC;\n"
	  "\tqueue->items[queue->head] = *item;\n"
	  "\tqueue->head = next;\n"
	  "\tif (queue->waiting > 0 && !queue->paused)\n"
	  "\t\twake_one(&queue->readers);\n"
	  "\treturn 0;\n"
	  "}\n",
	  96 },
	{ "{\"type\": \"function\", \"function\": {\"name\": \"find_flights\", \"description\""
	  ": \"Finds flights between two airports on a given day, cheapest first.\", \"paramet"
	  "ers\": {\"type\": \"object\", \"properties\": {\"origin\": {\"type\": \"string\", "
	  "\"description\": \"IATA code of the airport of departure\"}, \"destination\": {\"ty"
	  "pe\": \"string\", \"description\": \"IATA code of the airport of arrival\"}, \"date"
	  "\": {\"type\": \"string\", \"format\": \"date\"}, \"max_stops\": {\"type\": \"integ"
	  "er\", \"minimum\": 0, \"maximum\": 3}}, \"required\": [\"origin\", \"destination\","
	  " \"date\"]}}}",
	  142 },
	{ "diff --git a/src/cart.js b/src/cart.js\n"
	  "index 3f1c9ab..77e02d4 100644\n"
	  "--- a/src/cart.js\n"
	  "+++ b/src/cart.js\n"
	  "@@ -41,9 +41,11 @@ export function totalOf(cart) {\n"
	  "-  return cart.items.reduce((sum, item) => sum + item.price, 0);\n"
	  "+  const net = cart.items.reduce((sum, item) => sum + item.price * item.count, 0);"
	  "\n"
	  "+  const discount = cart.coupon ? net * cart.coupon.rate : 0;\n"
	  "+  return Math.max(0, net - discount);\n"
	  " }\n",
	  145 },
	{ "-rw-r--r-- 1 build build  339663 Oct 31 04:25 parser.o\n"
	  "-rw-r--r-- 1 build build  682654 Oct  2 02:52 lexer.o\n"
	  "-rw-r--r-- 1 build build  562013 Oct  4 11:37 main.o\n"
	  "-rw-r--r-- 1 build build   60916 Oct 30 16:13 libcore.a\n"
	  "-rw-r--r-- 1 build build   39417 Oct  3 13:26 config.json\n"
	  "-rw-r--r-- 1 build build   73348 Oct  8 02:35 README.txt\n"
	  "-rw-r--r-- 1 build build  445240 Oct  2 18:07 table.csv\n"
	  "-rw-r--r-- 1 build build  993573 Oct  8 20:40 notes.md",
	  245 },
	{ "2026-03-19T01:36:37.406Z INFO worker-15 job dbc496cb done in 4745 ms, 215 rows\n"
	  "2026-03-05T17:07:36.315Z INFO worker-7 job a38fd547 done in 6102 ms, 50 rows\n"
	  "2026-03-18T22:04:36.061Z INFO worker-32 job 506bf2ef done in 9594 ms, 473 rows\n"
	  "2026-03-15T11:19:15.813Z INFO worker-16 job 72e6cc3a done in 9978 ms, 38 rows\n"
	  "2026-03-04T16:26:10.775Z WARN worker-10 job eeeacbe2 done in 6910 ms, 21 rows\n"
	  "2026-03-22T02:48:35.586Z WARN worker-22 job b1fee08f done in 9739 ms, 255 rows\n"
	  "2026-03-19T14:04:53.095Z WARN worker-31 job 10a3d6b2 done in 5073 ms, 332 rows\n"
	  "2026-03-19T21:52:28.291Z WARN worker-23 job 7631a992 done in 2754 ms, 313 rows",
	  411 },
	{ "3f16947ccf25ec84d8dbc74254770f58904dba41ecccc3fc1626e53a13043b026c48bbf33feff9243a8"
	  "f506b40928b5b7a767c76fb008f86bebb2737f6a6f0fb23c6f5da2cec255404e4fb440034d6608697a8"
	  "d41bed440e50454f31af3176813e02ea68ef786e4d3cea27d26934b484e73cf575dcad6ba2b0aee0ca9"
	  "23732881584d8c4fa2815d2802827283e0ad84173581569969e58b081006f7e3dfc967a64cb14028d51"
	  "2c9791e558e08baa7196b50ac2f86702824c1c099724caf4941d4072014b3ce107f8",
	  357 },
	{ "07188181741433377617409319254499207074137484777183417047187463319128452984153776020"
	  "77642656515055613044516691564041042346853560688310679247082276544446347861221387837"
	  "57628331258153549306668364507495288314366764020679701687731322817180023904248611148"
	  "936439008474537838306400376143653705656304813734337",
	  300 },
	{ "33 4948152 9 9995 28 6832 59157 19186 890 3 18600 849 63056 50 5147 118704 2 195 83"
	  " 97820 522 680 397011 6272726 453 13 1 82 430 8 3479635 5843 5179113 7255295 0 4964"
	  "63 47 58503 41 755 496 430756 80 6790957 6 7 0 199 65904 44442 278 980 5712 764 723"
	  "074 946 304 9 1096090 3 7 488367 6484642 4211866 8085 63 1 5088777 2538648 30951 88"
	  "1 471 802 9994472 8 50 2683304 52 10 7",
	  370 },
	{ "请先检查配置文件是否存在，然后重新启动服务。如果日志里仍然出现超时错误，说明上游的连"
	  "接数已经达到上限，需要增加连接池的大小，或者缩短空闲连接的保留时间。修改之后，请把结"
	  "果告诉值班的同事，并在文档里记录这次故障的原因。",
	  64 },
	{ "函数 `load_config(path)` 读取 JSON 文件并返回一个字典；如果 `path` 不存在，则抛出 `"
	  "FileNotFoundError`。调用示例：`cfg = load_config(\"app.json\")`，随后用 `cfg[\"port"
	  "\"]` 取得端口号（默认 8080）。",
	  68 },
	{ "## Installation\n"
	  "\n"
	  "1. Unpack the archive and run `./configure --prefix=$HOME/.local`.\n"
	  "2. Build with `make -j4`; the tests need *Python 3.9* or later.\n"
	  "3. Copy `examples/settings.toml` to `~/.config/tool/` and set your **token**.\n"
	  "\n"
	  "| option | default | meaning |\n"
	  "|--------|---------|---------|\n"
	  "| `retries` | 3 | attempts before giving up |\n"
	  "| `timeout` | 30 s | per request |\n",
	  109 },
	{ "Le rapport annuel décrit l'évolution du réseau : trois lignes ont été prolongées, d"
	  "eux gares rénovées, et la fréquentation a augmenté de près de huit pour cent par ra"
	  "pport à l'année précédente.",
	  52 },
