"""The style of the report's page and of other pages with its charts: light and dark, wide and narrow."""

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b2027;--soft:#59616d;--grid:#dfe2e7;--card:#f6f7f9;
--good:#1c7440;--warning:#8a5a00;--bad:#b3261e;--link:#2456b8}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--text:#e9ecf0;--soft:#a3abb6;--grid:#30363e;--card:#1c2026;
--good:#63c98b;--warning:#e3b04b;--bad:#ff8f86;--link:#82abf7}}
*{box-sizing:border-box}html{scroll-padding-top:3.2rem;-webkit-text-size-adjust:100%}
body{margin:0 auto;padding:1.2rem 1.5rem 4rem;max-width:1460px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
a{color:var(--link);text-underline-offset:2px}h1{font-size:1.5rem;line-height:1.25;margin:0}
h2{font-size:1.25rem;margin:0 0 .5rem;overflow-wrap:anywhere}h3{font-size:1.05rem;margin:1.4rem 0 .4rem}
h4{font-size:.95rem;margin:1rem 0 .3rem;overflow-wrap:anywhere}
section{margin-top:2rem;padding-top:1.2rem;border-top:1px solid var(--grid)}
small,.none,.note{color:var(--soft);font-weight:400}.note{margin:.3rem 0;font-size:.92em}.none{margin:.4rem 0}
code{font:.88em ui-monospace,"DejaVu Sans Mono",Menlo,monospace;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(360px,100%),1fr));gap:.8rem;align-items:start}
figure{margin:0;padding:.7rem .9rem;background:var(--card);border:1px solid var(--grid);border-radius:8px;min-width:0}
figcaption{font-weight:600;margin-bottom:.3rem}figcaption small{font-size:.85em;display:inline-block}
svg{width:100%;height:auto;display:block;overflow:visible}svg text{fill:var(--soft);font-size:13px}
svg text.row{fill:var(--text)}.grid{stroke:var(--grid)}
.line polyline{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.line circle,.outlier{fill:var(--c)}
.line circle,.outlier{stroke:transparent;stroke-width:9;pointer-events:all}rect{fill:var(--c)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;font-size:12.5px;color:var(--soft);margin-top:.3rem}
.legend span{overflow-wrap:anywhere}
.legend i{display:inline-block;width:.7em;height:.7em;margin-right:.35em;border-radius:2px;background:var(--c)}
.c0{--c:#3b7dd8}.c1{--c:#d8742b}.c2{--c:#c9484e}.c3{--c:#3a9680}
.c4{--c:#8a63d2}.c5{--c:#a88626}.c6{--c:#c95aa0}.c7{--c:#7d8590}
table{border-collapse:collapse;font-size:14px;width:100%}
th,td{text-align:left;padding:.35rem .9rem .35rem 0;border-bottom:1px solid var(--grid);vertical-align:top;
overflow-wrap:break-word}
th{color:var(--soft);font-size:13px;font-weight:600}td:last-child,th:last-child{padding-right:0}
td:first-child{overflow-wrap:anywhere;min-width:7rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}.wide{overflow-x:auto}
nav{position:sticky;top:0;z-index:1;display:flex;gap:.3rem 1.1rem;overflow-x:auto;background:var(--back);
margin:1rem 0 0;padding:.55rem 0;border-bottom:1px solid var(--grid);white-space:nowrap}
nav a{text-decoration:none;max-width:16rem;overflow:hidden;text-overflow:ellipsis;flex:none}
nav a:hover{text-decoration:underline}
.good>b,.mark.good{color:var(--good)}.warning>b,.mark.warning{color:var(--warning)}.bad>b,.mark.bad{color:var(--bad)}
.mark{font-weight:700;margin-right:.35em}
.verdict{margin:1rem 0;padding:.7rem 1rem;background:var(--card);border:1px solid var(--grid);border-radius:8px;
border-left:4px solid var(--grid)}
.verdict.good{border-left-color:var(--good)}.verdict.warning{border-left-color:var(--warning)}
.verdict.bad{border-left-color:var(--bad)}.verdict>p{margin:0;font-size:1.1rem;font-weight:600}
ul.findings{list-style:none;margin:.4rem 0 0;padding:0}
ul.findings li{padding-left:1.4em;text-indent:-1.4em;margin:.25rem 0;overflow-wrap:anywhere}
.mark{display:inline-block;width:1.05em;text-indent:0;text-align:center}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.6rem,1fr));gap:.6rem;margin:.9rem 0}
dl.facts div{padding:.5rem .75rem;background:var(--card);border:1px solid var(--grid);border-radius:8px}
dl.facts dt{color:var(--soft);font-size:.85em}
dl.facts dd{margin:0;font-size:1.25rem;line-height:1.35;font-variant-numeric:tabular-nums}
@media(max-width:1000px){svg text{font-size:14px}table{font-size:13px}th{font-size:12px}th,td{padding-right:.5rem}}
@media(max-width:600px){table{font-size:14px}body{padding:1rem .8rem 3rem}figure{padding:.6rem .6rem}
svg text{font-size:17px}
svg text.time{font-size:16px}dl.facts{grid-template-columns:1fr 1fr}
.stack thead{display:none}.stack tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--grid)}
.stack td,.stack td.n{display:flex;justify-content:space-between;gap:1rem;padding:.1rem 0;border:0;white-space:normal;
text-align:right;min-width:0;overflow-wrap:anywhere}.stack td:empty{display:none}
.stack td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none;max-width:55%}
.stack td:first-child{font-weight:600;text-align:left}.stack td:first-child::before{content:none}}
@media print{nav{display:none}figure,.verdict{break-inside:avoid}}
"""
