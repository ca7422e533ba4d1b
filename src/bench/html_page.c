/* html_page.c - see html_page.h. */
#include "bench/html_page.h"

#include "bench/svg.h"

static const char style[] =
    ":root{--bg:#fbfbfa;--card:#fff;--ink:#1d2327;--soft:#5f6b73;--line:#e3e6e8;--grid:#eceff1;"
    "--good:#0a7d4f;--bad:#b3471b;--c0:#0f766e;--c1:#d97706;--c2:#4f6bd8;--c3:#b5438a;"
    "--c4:#6b8e23;--c5:#8b5e3c;--c6:#2f8fb3;--c7:#777}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14181b;--card:#1c2226;--ink:#e6eaec;"
    "--soft:#9aa7af;--line:#2d363c;--grid:#283036;--good:#4ecb95;--bad:#f0936a;--c0:#35b8a8;"
    "--c1:#f0a63c;--c2:#8ba1f5;--c3:#e07fbd;--c4:#a5c95a;--c5:#c69a75;--c6:#6cc3e2;--c7:#aaa}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "main{max-width:1120px;margin:0 auto;padding:40px 28px 80px}"
    "h1{font-size:30px;line-height:1.2;margin:0 0 8px;letter-spacing:-.01em}"
    "h2{font-size:21px;margin:48px 0 6px}h3{font-size:15px;margin:0 0 12px;font-weight:600}"
    "p{margin:6px 0;max-width:75ch}.soft{color:var(--soft)}"
    "code{font:13px/1.5 ui-monospace,'DejaVu Sans Mono',monospace;overflow-wrap:anywhere}"
    ".key{display:flex;flex-wrap:wrap;gap:6px 20px;margin:16px 0 0;padding:0;list-style:none}"
    ".key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:7px}"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:"
    "16px;"
    "margin:16px 0}.card{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:16px 18px}.card p{font-size:13px;margin:-8px 0 10px}"
    ".note{border-left:3px solid var(--c1);background:var(--card);padding:10px 16px;margin:18px 0}"
    ".note ul{margin:4px 0;padding-left:20px}"
    ".scroll{overflow-x:auto;background:var(--card);border:1px solid "
    "var(--line);border-radius:10px;"
    "margin:14px 0}table{border-collapse:collapse;width:100%;font-size:14px;"
    "font-variant-numeric:tabular-nums}th,td{padding:7px 14px;text-align:right;"
    "border-top:1px solid var(--line);white-space:nowrap}tr:first-child th{border-top:0}"
    "th{font-weight:600;color:var(--soft)}td:first-child,th:first-child,td.l,th.l{text-align:left}"
    "td.w{white-space:normal;min-width:18em}td small{color:var(--soft);margin-left:6px}"
    ".best{font-weight:700;color:var(--good)}.un{color:var(--bad)}"
    "details{margin:14px 0}summary{cursor:pointer;color:var(--soft)}"
    "svg{display:block;width:100%;height:auto;font-size:13px}svg text{fill:var(--ink)}"
    "svg .tick,svg .unit{fill:var(--soft);font-size:12px}svg .value{font-weight:600}"
    "svg .value .unit{font-weight:400}.grid{stroke:var(--grid);fill:none}"
    ".axis{stroke:var(--soft);stroke-opacity:.5;fill:none}"
    ".whisker{stroke:var(--ink);stroke-width:1.4;fill:none;opacity:.75}"
    ".dot{fill:var(--bg);fill-opacity:.75;stroke:var(--ink);stroke-opacity:.35;stroke-width:.6}"
    ".sw{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}"
    ".line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}";

void page_open(struct buf *out, struct str title)
{
    buf_addz(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                  "<meta name=\"color-scheme\" content=\"light dark\"><title>");
    svg_text(out, title);
    buf_addf(out, "</title><style>%s", style);
    for (int i = 0; i < 8; i++)
        buf_addf(out, ".c%d{fill:var(--c%d)}.l%d{stroke:var(--c%d)}.sw.c%d{background:var(--c%d)}",
                 i, i, i, i, i, i);
    buf_addz(out, "</style></head><body><main>\n<h1>");
    svg_text(out, title);
    buf_addz(out, "</h1>\n");
}

void page_close(struct buf *out)
{
    buf_addz(out, "</main></body></html>\n");
}

void page_card(struct buf *out, struct str title, const char *hint)
{
    buf_addz(out, "<div class=\"card\"><h3>");
    svg_text(out, title);
    buf_addz(out, "</h3>");
    if (hint)
        buf_addf(out, "<p class=\"soft\">%s</p>", hint);
}

void page_card_end(struct buf *out)
{
    buf_addz(out, "</div>\n");
}
