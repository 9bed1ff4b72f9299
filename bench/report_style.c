/* The page's looks: light, dark and on paper; colours that the colour-blind tell apart. */
#include "bench/report.h"

/* s0..s5: arms; h1..h6: a quantity's steps, pale to strong. Lines differ by dashes, marks by shape,
 * so that a grey print can be read, too. */
#define LIGHT                                                                                  \
	"--bg:#fff;--fg:#16181c;--dim:#565b64;--line:#b9bec7;--grid:#e4e7ec;--card:#f6f7f9;--" \
	"area:#d3d9e2;"                                                                        \
	"--s0:#16181c;--s1:#0068ad;--s2:#c24a00;--s3:#007a5a;--s4:#a33a80;--s5:#8a6500;"       \
	"--sx:#8a9099;--good:#00694c;--bad:#b3261e;"                                           \
	"--h1:#d9e8f5;--h2:#b3d1ea;--h3:#7fb0d9;--h4:#4a8bc2;--h5:#1f639f;--h6:#0a3460;"
#define DARK                                                                                      \
	"--bg:#14161a;--fg:#e6e8ec;--dim:#a0a6b0;--line:#4a505a;--grid:#2a2e35;--card:#1c1f25;--" \
	"area:#363c46;"                                                                           \
	"--s0:#f2f3f5;--s1:#5db3f0;--s2:#ff8a4c;--s3:#3cc79b;--s4:#e88bc8;--s5:#dcb23c;"          \
	"--sx:#7d848e;--good:#4fd1a5;--bad:#ff8a80;"                                              \
	"--h1:#1b2c3d;--h2:#22435f;--h3:#2c6390;--h4:#4a8fc4;--h5:#85bce6;--h6:#d6ecff;"
/* On paper heat is grey: it survives a copier. */
#define PAPER                                                             \
	LIGHT "--fg:#000;--dim:#333;--line:#888;--grid:#ddd;--card:#fff;" \
	      "--h1:#ececec;--h2:#d2d2d2;--h3:#adadad;--h4:#858585;--h5:#555;--h6:#111;"

const char report_style_sheet[] =
	":root{color-scheme:light dark;" LIGHT "}\n"
	"@media (prefers-color-scheme:dark){:root{" DARK "}}\n"
	"*{box-sizing:border-box}\n"
	"body{margin:0 auto;padding:24px 20px 60px;max-width:1180px;background:var(--bg);"
	"color:var(--fg);font:15px/1.5 system-ui,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif}\n"
	"h1{font-size:25px;line-height:1.25;margin:0 0 4px}\n"
	"h2{font-size:21px;line-height:1.3;margin:44px 0 8px;padding-top:14px;"
	"border-top:2px solid var(--fg)}\n"
	"h3{font-size:17px;margin:34px 0 6px}\n"
	"p{margin:6px 0;max-width:84ch}.dim{color:var(--dim)}\n"
	"a{color:var(--s1)}code,.mono{font:13px/1.45 ui-monospace,\"DejaVu Sans Mono\",monospace}\n"
	"nav{margin:18px 0;padding:10px 16px;background:var(--card);border-radius:6px}\n"
	"nav ol{margin:4px 0;padding-left:22px}nav ul{margin:0;padding-left:16px;list-style:none}\n"
	"nav ul li{display:inline;margin-right:14px;font-size:13px}\n"
	"dl.facts{display:flex;flex-wrap:wrap;gap:2px 26px;margin:8px 0;font-size:14px}"
	"dl.facts div{display:flex;gap:8px}dl.facts dt{color:var(--dim)}"
	"dl.facts dd{margin:0;overflow-wrap:anywhere}\n"
	"ul.says{margin:10px 0;padding-left:20px}ul.says li{margin:2px 0}\n"
	"figure{margin:10px 0 26px}figcaption{color:var(--dim);font-size:13.5px;max-width:100ch;"
	"margin-top:6px}\n"
	"svg{display:block;width:100%;height:auto;overflow:visible}svg.defs{position:absolute;"
	"width:0}\n"
	"svg text{font:12px system-ui,\"Segoe UI\",Roboto,\"DejaVu "
	"Sans\",sans-serif;fill:var(--fg)}\n"
	"svg .n{font-weight:600}svg .mean{stroke:var(--fg);stroke-width:1.6;fill:none}"
	"svg .t{font-weight:600;font-size:13px}svg .a{fill:var(--dim);font-size:11px}"
	"svg .v{font-size:11.5px;font-variant-numeric:tabular-nums}svg .z{font-size:9.5px}\n"
	"svg .g{stroke:var(--grid);stroke-width:1;fill:none}"
	"svg .x{stroke:var(--line);stroke-width:1;fill:none}"
	"svg .ref{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3;fill:none}\n"
	"svg .row{fill:var(--card)}svg .area{fill:var(--area);stroke:none}\n"
	"svg .out{fill:url(#hatch);stroke:var(--dim);stroke-width:.7}"
	"svg .piece{stroke:var(--dim);stroke-width:1.2;fill:none}\n"
	"svg .l{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .thin{stroke-width:1.2}"
	"svg .bar{stroke-width:9;stroke-linecap:butt}"
	"svg .thick{stroke-width:4.5;stroke-linecap:butt}svg .m{stroke-width:1.6}"
	"svg .mv{fill:none;stroke-width:1}svg .hollow{fill:var(--bg)}\n"
	"svg .s0{stroke:var(--s0);color:var(--s0)}svg .s1{stroke:var(--s1);color:var(--s1)}"
	"svg .s2{stroke:var(--s2);color:var(--s2)}svg .s3{stroke:var(--s3);color:var(--s3)}"
	"svg .s4{stroke:var(--s4);color:var(--s4)}svg .s5{stroke:var(--s5);color:var(--s5)}"
	"svg .sx{stroke:var(--sx);color:var(--sx)}svg .solid{fill:currentColor}\n"
	"svg .d1{stroke-dasharray:9 3}svg .d2{stroke-dasharray:2.5 2.5}"
	"svg .d3{stroke-dasharray:9 3 2 3}svg .d4{stroke-dasharray:5 3}"
	"svg .d5{stroke-dasharray:14 3 2 3 2 3}\n"
	"svg .h1{stroke:var(--h1)}svg .h2{stroke:var(--h2)}svg .h3{stroke:var(--h3)}"
	"svg .h4{stroke:var(--h4)}svg .h5{stroke:var(--h5)}svg .h6{stroke:var(--h6)}\n"
	".wide{overflow-x:auto}\n"
	"table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;"
	"margin:8px 0}\n"
	"th,td{padding:3px 9px;text-align:right;white-space:nowrap;border-bottom:1px solid "
	"var(--grid)}\n"
	"thead th{border-bottom:1.5px solid var(--fg);vertical-align:bottom;font-weight:600}"
	"thead tr.of th{border-bottom:1px solid var(--line);text-align:center;color:var(--dim);"
	"font-weight:400}\n"
	"th:first-child,td.w,td.l{text-align:left;white-space:normal}tbody th{font-weight:400}"
	"tbody tr.base th{font-weight:700}tbody tr:hover{background:var(--card)}\n"
	"table.dense{font-size:12.5px}.dense th,.dense td{padding:3px 6px}"
	".dense th:first-child{white-space:nowrap;padding-left:0}\n"
	"td .se{color:var(--dim);font-size:11px}.best{font-weight:700}"
	".met{color:var(--good);font-weight:600}.unmet{color:var(--bad);font-weight:700}\n"
	"caption{caption-side:bottom;text-align:left;color:var(--dim);font-size:13.5px;"
	"padding-top:6px;white-space:normal}\n"
	"@page{size:A4 landscape;margin:12mm}\n"
	"@media print{:root{color-scheme:light;" PAPER "}"
	"body{max-width:none;padding:0;font-size:10.5pt}h2{break-before:page;margin-top:0}"
	"h2.first{break-before:auto}h2,h3,h4{break-after:avoid}svg,tr,dl,nav,ul.says{break-inside:"
	"avoid}"
	"svg{max-height:160mm}figcaption{break-before:avoid}caption{break-inside:avoid}"
	"thead{display:table-header-group}.wide{overflow:visible}table{font-size:8.5pt}"
	"th,td{padding:2px 6px}nav{border:1px solid #888}a{color:inherit;text-decoration:none}}\n";
