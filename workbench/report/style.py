"""The report's style sheet: light and dark by the reader's setting, nothing fetched."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #5b6776; --line: #dfe4ea;
  --hit: #cdeed9; --hit-ink: #0b4f2c;
  --c0: #2563c9; --c1: #d9690f; --c2: #12866a; --c3: #b8327a; --c4: #6d50c7; --c5: #a07405;
  --c6: #0a7f9c; --c7: #7c8796;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11161d; --card: #1a212b; --ink: #e6ebf1; --soft: #9aa7b6; --line: #2e3846;
    --hit: #124a30; --hit-ink: #b9f2d2;
    --c0: #6ea3f7; --c1: #f29b50; --c2: #4fc7a5; --c3: #e87fb6; --c4: #a693f2; --c5: #dcb548;
    --c6: #4fc0dc; --c7: #8592a2;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 40px 0 12px; padding-top: 14px; border-top: 1px solid var(--line); }
h3 { font-size: 15.5px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); font-size: 13.5px; }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr));
  margin: 18px 0 22px; }
.card, figure, details, .wide { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 25px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); }
figure { margin: 0; padding: 16px 18px 14px; }
figure svg { display: block; width: 100%; height: auto; margin-top: 6px; }
figcaption { font-size: 13px; color: var(--soft); min-height: 1.6em; }
.wide { overflow-x: auto; padding: 4px 6px; margin-bottom: 18px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: 13px; border-bottom: 1px solid var(--line); }
th.name, td.name { text-align: left; }
.under { overflow-x: auto; margin-top: 10px; font-size: 12.5px; }
.under th, .under td { padding: 2px 7px; }
tr.best td { background: color-mix(in srgb, var(--c0) 12%, transparent); font-weight: 600; }
svg text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg text.title { font-size: 12px; }
svg line.grid { stroke: var(--line); } svg line.base { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
svg .dashed { stroke-dasharray: 5 5; stroke-width: 1.6; }
svg .mark { stroke: var(--card); stroke-width: 1.2; } svg .mark:hover, svg .bar:hover {
  stroke: var(--ink); stroke-width: 1.6; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12.5px; color: var(--soft);
  margin-top: 4px; padding-left: 8px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1.5px; }
.key i.dashed { height: 0; border-top: 2px dashed var(--c7); border-radius: 0;
  vertical-align: 3px; background: none !important; }
details { margin: 8px 0; padding: 9px 14px; }
summary { cursor: pointer; font-variant-numeric: tabular-nums; }
summary b { display: inline-block; min-width: 5.5em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 10px 0 4px; padding: 12px 14px;
  border-radius: 8px; background: var(--page); font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo,
  Consolas, "DejaVu Sans Mono", monospace; max-height: 420px; overflow-y: auto; }
pre.prompt { color: var(--soft); max-height: 180px; }
mark { background: var(--hit); color: var(--hit-ink); border-radius: 3px; padding: 1px 0; }
""" + "".join(
    f".line.s{n} {{ stroke: var(--c{n}); }} .mark.s{n}, .bar.s{n} {{ fill: var(--c{n}); }} "
    f"i.s{n} {{ background: var(--c{n}); }}\n"
    for n in range(8)
)
